"""What a step's results mean for its sequences."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from serving.contracts.messages import FinishReason, Scheduled, TokenLogprobs, Tokens
from serving.engine.endings import Endings
from serving.engine.order import Order
from serving.engine.plan import PlannedChunk, StepPlan, StepResult
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence, SequenceStatus
from serving.engine.speculation.speculator import Speculator


class ResultTaker:
    """Owns the order by which service is charged; used by the engine's thread only. Moves sequences on by what came of
    their chunks, counts it, and tells their owners."""

    def __init__(self, roster: Roster, endings: Endings, speculator: Speculator, order: Order) -> None:
        self._roster = roster
        self._endings = endings
        self._counters = endings.counters
        self._speculator = speculator
        self._order = order

    def charge_by(self, order: Order) -> None:
        """Tell this order from now on what service was given."""
        self._order = order

    def take(self, plan: StepPlan, sequences: Seq[Sequence], result: StepResult, moments: tuple[float, float]) -> None:
        """Take in the result of `plan`, whose chunks are those of `sequences`: computed between two `moments`, in
        seconds. Who does not run any more keeps nothing of it."""
        began, now = moments
        for index, sequence in enumerate(sequences):
            chunk = plan.chunks[index]
            if sequence.status is not SequenceStatus.RUNNING:
                self._counters.discarded_tokens += chunk.num_rows
                continue
            if chunk.is_prefill:
                self._take_prefill(sequence, chunk, (began, now), batch_size=len(plan.chunks))
            else:
                sequence.num_computed_tokens = end = chunk.end
                if end > sequence.spans.run_until:
                    sequence.spans.begin_run(began, position=chunk.start, batch_size=len(plan.chunks))
            if index in result.errors:
                self._endings.finish(sequence, "error", now, message=result.errors[index])
                continue
            if sequence.num_computed_tokens >= sequence.next_block_end:
                self._roster.note_full_blocks(sequence)
            if index in result.prompt_logprobs:
                sequence.note_prompt_logprobs(result.prompt_logprobs[index], start=chunk.start)
            if chunk.is_prefill and chunk.embeds:
                self._take_hidden(sequence, result, index, now)
            if chunk.samples:
                logprobs = result.logprobs.get(index)
                self._take_tokens(sequence, result.token_ids[index], now, logprobs=logprobs, of=chunk)

    def _take_prefill(
        self, sequence: Sequence, chunk: PlannedChunk, moments: tuple[float, float], *, batch_size: int
    ) -> None:
        began, now = moments
        sequence.spans.add_prefill(began, now, num_tokens=len(chunk.token_ids), batch_size=batch_size)
        if not sequence.is_start_told and sequence.first_scheduled_at is not None:
            sequence.is_start_told = True
            self._endings.tell(sequence, Scheduled(sequence.key, sequence.attempt, now - sequence.first_scheduled_at))
        # What was found cached, or is computed again since it had to give way, is nobody's debt.
        first_new = max(chunk.start, sequence.num_counted_prompt_tokens)
        self._counters.prompt_tokens += sequence.advance(chunk.end)
        num_new = sequence.num_counted_prompt_tokens - first_new
        if num_new > 0 and self._order.weighs_service:
            self._order.charge(sequence, num_prompt_tokens=num_new, num_generated=0)

    def _take_hidden(self, sequence: Sequence, result: StepResult, index: int, now: float) -> None:
        """What chunk number `index` adds to an embedding, with which its sequence ends where it is complete."""
        sequence.hidden_sum = result.hidden_sums.get(index)
        embedding = result.embeddings.get(index)
        if embedding is not None:
            self._endings.finish(sequence, "stop", now, embedding=embedding)

    def _take_drafts(self, sequence: Sequence, chunk: PlannedChunk, *, num_kept: int) -> None:
        """The first `num_kept` drafts of `chunk` are tokens of the context by now: they are computed."""
        self._counters.drafted_tokens += len(chunk.draft_ids)
        self._counters.accepted_tokens += num_kept
        self._speculator.note_kept(chunk, num_kept=num_kept)
        sequence.num_computed_tokens = sequence.num_planned_tokens = chunk.end + num_kept
        if sequence.num_computed_tokens >= sequence.next_block_end:
            self._roster.note_full_blocks(sequence)

    def _take_tokens(
        self,
        sequence: Sequence,
        token_ids: Seq[int],
        now: float,
        *,
        logprobs: list[TokenLogprobs] | None,
        of: PlannedChunk,
    ) -> None:
        start_index = sequence.num_generated
        timings = None
        if sequence.first_token_at is None:
            sequence.first_token_at = now
            timings = sequence.timings(now)
        taken: list[int] = []
        reason: FinishReason | None = None
        for token_id in token_ids:
            taken.append(token_id)
            reason = sequence.append(token_id)
            if reason is not None:
                break
        if of.draft_ids:
            self._take_drafts(sequence, of, num_kept=len(taken) - 1)
        if logprobs is not None:
            logprobs = logprobs[: len(taken)]
        self._counters.generated_tokens += len(taken)
        if self._order.weighs_service:
            self._order.charge(sequence, num_prompt_tokens=0, num_generated=len(taken))
        of_prompt = sequence.take_prompt_logprobs()
        self._endings.tell(
            sequence, Tokens(sequence.key, sequence.attempt, start_index, taken, timings, logprobs, of_prompt)
        )
        if reason is not None:
            self._endings.finish(sequence, reason, now)
