"""Decides what each step computes, and what its results mean for every sequence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq

from serving.contracts.ids import OwnerId
from serving.contracts.messages import (
    Accepted,
    Event,
    Finished,
    FinishReason,
    RefusalCode,
    Refused,
    Returned,
    Scheduled,
    SequenceKey,
    Submit,
    TokenLogprobs,
    Tokens,
)
from serving.contracts.tunables import Tunables
from serving.engine.order import Order, order_of
from serving.engine.plan import PlannedChunk, StepPlan, StepResult
from serving.engine.planner import StepPlanner
from serving.engine.recent import RecentMap
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence, SequenceStatus
from serving.engine.stats import Counters
from serving.engine.step_admission import overdue_message, refusal_of, wait_ends_at, window_ends_at
from serving.engine.waiting import WaitingCounts

_MAX_REMEMBERED = 10_000


class Scheduler:
    """Owns the roster of live sequences and what is remembered of ended ones; used by the engine's thread only.

    Knows no clock: `now` is given, in seconds, and never goes back. A step is `schedule`, then `update` (or `fail`)
    with that plan; sequences may be added and aborted at any time, between the two as well. What owners are to be told
    gathers until `update` or `take_events` hands it over. Every submitted key ends in exactly one `Finished`,
    `Refused` or `Returned` of its newest attempt.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        tunables: Tunables,
    ) -> None:
        self.max_context_tokens = min(max_model_len, num_blocks * block_size)
        self.counters = Counters()
        self.draining = False
        self._eos_token_ids = eos_token_ids
        self._tunables = tunables
        self._order: Order = order_of(tunables.order)
        self._roster = Roster(
            num_blocks=num_blocks,
            block_size=block_size,
            order=self._order,
            long_tokens=tunables.long_prompt_tokens,
        )
        self._roster.use_prefix_caching(is_on=tunables.prefix_caching == "on")
        self._planner = StepPlanner(self._roster, tunables, self._order)
        self._num_added = 0
        self._aborted_attempts: RecentMap[SequenceKey, int] = RecentMap(_MAX_REMEMBERED)
        self._ended_attempts: RecentMap[SequenceKey, int] = RecentMap(_MAX_REMEMBERED)
        self._in_flight: tuple[StepPlan, list[Sequence]] | None = None
        self._planned_at = 0.0
        self._events: list[tuple[OwnerId, Event]] = []

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def tunables(self) -> Tunables:
        """What the next `schedule` goes by."""
        return self._tunables

    @property
    def owners(self) -> frozenset[OwnerId]:
        """Who owns the live sequences."""
        return frozenset(sequence.owner_id for sequence in self._roster)

    @property
    def num_running(self) -> int:
        """Sequences that hold a place in the batch."""
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, preempted ones included."""
        return len(self._roster.waiting)

    @property
    def waiting_counts(self) -> WaitingCounts:
        """Their context tokens, lanes and priorities."""
        return self._roster.waiting.counts()

    @property
    def num_blocks_used(self) -> int:
        """Blocks that live sequences hold."""
        return self._roster.pool.num_used

    @property
    def num_blocks_cached(self) -> int:
        """Blocks kept for reuse that nobody holds."""
        return self._roster.pool.num_cached

    @property
    def num_blocks_free(self) -> int:
        """Blocks with nothing in them."""
        return self._roster.pool.num_free

    @property
    def num_prefix_tokens(self) -> tuple[int, int]:
        """Context tokens of the sequences that started while prefix caching was on, since the engine's start (not those
        that a sibling had computed), and those of them that were found."""
        return self._roster.num_prefix_query_tokens, self._roster.num_prefix_hit_tokens

    @property
    def preempted_keys(self) -> tuple[SequenceKey, ...]:
        """Who was preempted by the last `schedule`."""
        return self._planner.preempted_keys

    def first_waiting(self, count: int) -> tuple[SequenceKey, ...]:
        """The first of those that wait, in the order in which they would be served."""
        waiting = self._roster.waiting
        return tuple([sequence.key for sequence in itertools.islice(waiting.in_order(), count)]) if waiting else ()

    @property
    def has_events(self) -> bool:
        """Whether owners are to be told something."""
        return bool(self._events)

    def take_events(self) -> list[tuple[OwnerId, Event]]:
        """Hand over the events gathered since the last time, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    def next_wakeup(self, now: float) -> float | None:
        """When `schedule` next has something to do: `now` or earlier means at once, None not before something comes."""
        if self._roster.running:
            return now
        waiting = self._roster.waiting
        if not waiting:
            return None
        # Alone in the pool, whoever is first fits.
        oldest, refusable = waiting.oldest_unstarted, self._next_overdue()
        if oldest is None or waiting.num_preempted or self._planner.is_window_over(oldest, now):
            return now
        window_end = window_ends_at(oldest, self._tunables)
        return window_end if refusable is None else min(window_end, wait_ends_at(refusable, self._tunables))

    def check_invariants(self) -> None:
        """Raise AssertionError where the books contradict each other. For tests."""
        self._roster.check_invariants()

    # --- commands --------------------------------------------------------------------------------------------------

    def add(self, submit: Submit, now: float) -> None:
        """Let a sequence wait, or refuse what can never run.

        A newer attempt of a live key takes the older one's place without a word to its owner; an older or equal one is
        ignored. What was aborted before it came ends at once.
        """
        current = self._roster.find(submit.key)
        latest = current.attempt if current else self._ended_attempts.get(submit.key)
        if latest is not None and submit.attempt <= latest:
            return
        if current is not None:
            self._leave(current)
        self._num_added += 1
        sequence = Sequence.of(submit, eos_token_ids=self._eos_token_ids, serial=self._num_added, now=now)
        sequence.rank = self._order.rank(sequence)
        self._roster.enter(sequence)
        if submit.attempt <= (self._aborted_attempts.get(submit.key) or 0):
            self._finish(sequence, "abort", now)
            return
        if (refusal := self._refusal_of(submit)) is not None:
            self._refuse(sequence, *refusal)
            return
        num_ahead = self._roster.waiting.num_ahead_of(sequence)
        self._tell(sequence, Accepted(sequence.key, sequence.attempt, num_ahead))
        # An earlier attempt may have delivered its last token and died before it could say so.
        reason = sequence.end_reason()
        if reason is not None:
            self._finish(sequence, reason, now)

    def abort(self, key: SequenceKey, now: float, *, attempt: int) -> None:
        """End a choice's attempts up to `attempt`, whatever their state. Remembered, since Submits may be on their way.

        Ended and newer ones are left alone. The last 10,000 aborts are remembered.
        """
        self._aborted_attempts.keep(key, max(attempt, self._aborted_attempts.get(key) or 0))
        sequence = self._roster.find(key)
        if sequence is not None and sequence.attempt <= attempt:
            self._finish(sequence, "abort", now)

    def abort_owner(self, owner_id: OwnerId, now: float) -> None:
        """End every sequence of an owner that is gone."""
        for sequence in self._roster.owned_by(owner_id):
            self._finish(sequence, "abort", now)

    def remind(self) -> None:
        """Say of every live sequence that it is in good hands: silence would mean that word of it was lost."""
        for sequence in self._roster.running:
            self._tell(sequence, Accepted(sequence.key, sequence.attempt))
        for num_ahead, sequence in enumerate(self._roster.waiting.in_order()):
            self._tell(sequence, Accepted(sequence.key, sequence.attempt, num_ahead))

    def retune(self, tunables: Tunables) -> None:
        """Use other tunables from the next `schedule` on."""
        before, self._tunables = self._tunables, tunables
        if tunables.order != before.order:
            self._order = order_of(tunables.order)
        if (tunables.order, tunables.long_prompt_tokens) != (before.order, before.long_prompt_tokens):
            self._roster.rank_anew(self._order, long_tokens=tunables.long_prompt_tokens)
        self._planner.retune(tunables, self._order)
        self._roster.use_prefix_caching(is_on=tunables.prefix_caching == "on")

    def drain(self) -> None:
        """Accept nothing new and hand back what never started; what has run goes on to its end."""
        self.draining = True
        for sequence in self._roster.waiting.unstarted():
            self._return(sequence)

    def resume(self) -> None:
        """Accept what is new again."""
        self.draining = False

    def share(self) -> None:
        """Hand back what never started but for the most deserving, a sequence a free place: others may have more."""
        num_places = max(0, self._tunables.max_running - len(self._roster.running))
        for sequence in self._order.by_merit(self._roster.waiting.unstarted())[num_places:]:
            self._return(sequence)

    def hand_back(self) -> None:
        """Give every live sequence back to its owner, who goes on with it elsewhere."""
        self.draining = True
        for sequence in list(self._roster):
            self._return(sequence)

    # --- the step --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Choose what the next step computes; None where nothing can run now."""
        assert self._in_flight is None, "the plan in flight has no result yet"
        self._refuse_overdue(now)
        planned = self._planner.plan_step(self.counters.steps + 1, now)
        self.counters.preemptions += len(self._planner.preempted_keys)
        if planned is None:
            return None
        self._in_flight = planned
        self._planned_at = now
        self.counters.steps += 1
        self.counters.padded_tokens += planned[0].num_padded_tokens
        return planned[0]

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[tuple[OwnerId, Event]]:
        """Take in the result of `plan` and hand over all events gathered since the last time.

        What was aborted, replaced or ended meanwhile keeps nothing of it.
        """
        for index, sequence in enumerate(self._land(plan)):
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            chunk = plan.chunks[index]
            if chunk.is_prefill:
                self._take_prefill(sequence, chunk, now, batch_size=len(plan.chunks))
            else:
                sequence.num_computed_tokens = chunk.end
                if chunk.end > sequence.spans.run_until:
                    sequence.spans.begin_run(self._planned_at, position=chunk.start, batch_size=len(plan.chunks))
            if index in result.errors:
                self._finish(sequence, "error", now, message=result.errors[index])
                continue
            if sequence.num_computed_tokens >= sequence.next_block_end:
                self._roster.note_full_blocks(sequence)
            if index in result.prompt_logprobs:
                sequence.note_prompt_logprobs(result.prompt_logprobs[index], start=chunk.start)
            if chunk.is_prefill and chunk.embeds:
                self._take_hidden(sequence, result, index, now)
            if chunk.samples:
                self._take_tokens(sequence, result.token_ids[index], now, logprobs=result.logprobs.get(index))
        return self.take_events()

    def fail(self, plan: StepPlan, message: str, now: float) -> list[tuple[OwnerId, Event]]:
        """End every sequence of `plan`, which could not be computed; hands over the events like `update`."""
        for sequence in self._land(plan):
            if sequence.status is SequenceStatus.RUNNING:
                self._finish(sequence, "error", now, message=message)
        return self.take_events()

    # --- results and endings ---------------------------------------------------------------------------------------

    def _refuse_overdue(self, now: float) -> None:
        while (overdue := self._next_overdue()) is not None:
            if now < wait_ends_at(overdue, self._tunables):
                return
            self._refuse(overdue, "queue_timeout", overdue_message(overdue, self._tunables))

    def _next_overdue(self) -> Sequence | None:
        """Who is the first to have waited too long if nothing changes; None where nobody is refused for waiting."""
        waiting = self._roster.waiting
        first = [sequence for sequence in (waiting.oldest_refusable, waiting.soonest_deadline) if sequence is not None]
        return min(first, key=lambda sequence: wait_ends_at(sequence, self._tunables), default=None)

    def _land(self, plan: StepPlan) -> list[Sequence]:
        assert self._in_flight is not None, "no plan is in flight"
        planned, sequences = self._in_flight
        assert planned is plan, "this plan is not the one in flight"
        self._in_flight = None
        return sequences

    def _take_prefill(self, sequence: Sequence, chunk: PlannedChunk, now: float, *, batch_size: int) -> None:
        sequence.spans.add_prefill(self._planned_at, now, num_tokens=len(chunk.token_ids), batch_size=batch_size)
        if not sequence.is_start_told and sequence.first_scheduled_at is not None:
            sequence.is_start_told = True
            self._tell(sequence, Scheduled(sequence.key, sequence.attempt, now - sequence.first_scheduled_at))
        # What was found cached, or is computed again since it had to give way, is nobody's debt.
        first_new = max(chunk.start, sequence.num_counted_prompt_tokens)
        self.counters.prompt_tokens += sequence.advance(chunk.end)
        num_new = sequence.num_counted_prompt_tokens - first_new
        if num_new > 0 and self._order.weighs_service:
            self._order.charge(sequence, num_prompt_tokens=num_new, num_generated=0)

    def _take_hidden(self, sequence: Sequence, result: StepResult, index: int, now: float) -> None:
        """What chunk number `index` adds to an embedding, with which its sequence ends where it is complete."""
        sequence.hidden_sum = result.hidden_sums.get(index)
        embedding = result.embeddings.get(index)
        if embedding is not None:
            self._finish(sequence, "stop", now, embedding=embedding)

    def _take_tokens(
        self, sequence: Sequence, token_ids: Seq[int], now: float, *, logprobs: list[TokenLogprobs] | None
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
        if logprobs is not None:
            logprobs = logprobs[: len(taken)]
        self.counters.generated_tokens += len(taken)
        if self._order.weighs_service:
            self._order.charge(sequence, num_prompt_tokens=0, num_generated=len(taken))
        of_prompt = sequence.take_prompt_logprobs()
        self._tell(sequence, Tokens(sequence.key, sequence.attempt, start_index, taken, timings, logprobs, of_prompt))
        if reason is not None:
            self._finish(sequence, reason, now)

    def _refusal_of(self, submit: Submit) -> tuple[RefusalCode, str] | None:
        if self.draining:
            return "draining", "the engine is finishing its work and takes no more"
        return refusal_of(submit, max_context_tokens=self.max_context_tokens)

    def _refuse(self, sequence: Sequence, code: RefusalCode, message: str) -> None:
        self._leave(sequence)
        self._tell(sequence, Refused(sequence.key, sequence.attempt, code, message))

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        message: str = "",
        embedding: bytes | None = None,
    ) -> None:
        self._leave(sequence)
        key, attempt, timings = sequence.key, sequence.attempt, sequence.timings(now)
        self._tell(sequence, Finished(key, attempt, reason, sequence.num_generated, timings, message, embedding))

    def _return(self, sequence: Sequence) -> None:
        self._leave(sequence)
        self._tell(sequence, Returned(sequence.key, sequence.attempt))

    def _leave(self, sequence: Sequence) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self.counters.left += 1
        self._roster.leave(sequence)
        self._ended_attempts.keep(sequence.key, sequence.attempt)

    def _tell(self, sequence: Sequence, event: Event) -> None:
        self._events.append((sequence.owner_id, event))
