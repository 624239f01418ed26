"""Sequences that are played on a runner by plans made at random: each after the one before, or before it is known."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from serving.contracts.ids import RequestId
from serving.contracts.messages import SequenceKey, TokenLogprobs
from serving.contracts.sampling import SamplingParams
from serving.engine.model_runner import ModelRunner
from serving.engine.plan import HiddenSum, Launched, PlannedChunk, StepPlan, StepResult


@dataclasses.dataclass(slots=True, eq=False)
class Played:
    """One sequence: what it was told, and how far its plans have come."""

    name: str
    prompt: list[int]
    params: SamplingParams
    generated: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    embedding: bytes = b""
    error: str = ""
    ended: bool = False
    context: list[int] = dataclasses.field(default_factory=list)
    table: list[int] = dataclasses.field(default_factory=list)
    computed: int = 0
    hidden_sum: HiddenSum | None = None
    pending: int | None = None
    """The chunk of the plan in flight that chooses its next token."""

    @property
    def waits_for_host(self) -> bool:
        """Whether its next token depends on those before in ways that the device does not know."""
        params = self.params
        penalises = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1.0, 0.0, 0.0)
        return penalises or params.grammar is not None

    @property
    def told(self) -> tuple[object, ...]:
        return self.generated, self.logprobs, self.prompt_logprobs, self.embedding, self.error


@dataclasses.dataclass(frozen=True, slots=True)
class _Flight:
    members: list[Played]
    chunks: list[PlannedChunk]
    launched: Launched


class Player:
    """Owns which blocks are taken, and the plans in flight."""

    def __init__(self, runner: ModelRunner, *, ahead: bool, seed: int = 0) -> None:
        self._runner = runner
        self._ahead = ahead
        self._chance = random.Random(seed)
        self._free = list(range(runner.num_blocks))
        self._chance.shuffle(self._free)
        self._flights: list[_Flight] = []
        self._step = 0
        self.num_awaited = 0
        """Chunks whose token was not known when they were launched."""

    def play(self, sequences: Sequence[Played]) -> list[tuple[object, ...]]:
        """Compute until all have ended, who is in each step and how much of it chosen at random; what each was told."""
        for sequence in sequences:
            sequence.context = list(sequence.prompt)
        while self._flights or not all(sequence.ended for sequence in sequences):
            self._launch(sequences)
            while len(self._flights) > (1 if self._ahead and self._chance.random() < 0.9 else 0):
                self._collect()
        return [sequence.told for sequence in sequences]

    def _launch(self, sequences: Sequence[Played]) -> None:
        members = [one for one in sequences if self._can_go_on(one) and self._chance.random() < 0.85]
        if not members:
            if self._flights:
                self._collect()
            return
        chunks = [self._chunk(one) for one in members]
        self._step += 1
        num_prefill = sum(len(chunk.token_ids) for chunk in chunks if chunk.is_prefill)
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        plan = StepPlan(self._step, tuple(chunks), num_prefill, num_tokens - num_prefill)
        self._flights.append(_Flight(members, chunks, self._runner.launch(plan)))
        for index, (one, chunk) in enumerate(zip(members, chunks, strict=True)):
            one.computed = chunk.end
            one.pending = index if chunk.samples else None
        # What the flight before chooses is pending no more: it cannot be awaited of this one.
        for one in sequences:
            if one not in members and one.pending is not None:
                one.pending = -1

    def _can_go_on(self, one: Played) -> bool:
        if one.ended or (one.params.embeds and one.computed == len(one.prompt)):
            return False
        if one.pending is None:
            return True
        return one.pending >= 0 and not one.waits_for_host and len(one.generated) + 1 < one.params.max_tokens

    def _chunk(self, one: Played) -> PlannedChunk:
        awaits = one.pending
        self.num_awaited += awaits is not None
        num_known = len(one.context)
        end = one.computed + 1 if awaits is not None else min(num_known, one.computed + self._chance.randint(1, 40))
        while len(one.table) * self._runner.block_size < end:
            one.table.append(self._free.pop())
        return PlannedChunk(
            key=SequenceKey(RequestId(one.name), 0),
            token_ids=[0] if awaits is not None else one.context[one.computed : end],
            start=one.computed,
            block_table=one.table,
            samples=not one.params.embeds and end >= num_known,
            sample_index=len(one.generated) + (awaits is not None),
            params=one.params,
            is_prefill=one.computed < len(one.prompt),
            context=one.context,
            num_prompt_tokens=len(one.prompt),
            hidden_sum=one.hidden_sum,
            awaits=awaits,
        )

    def _collect(self) -> None:
        flight = self._flights.pop(0)
        result = flight.launched.collect()
        for index, (one, chunk) in enumerate(zip(flight.members, flight.chunks, strict=True)):
            if not one.ended:
                self._tell(one, chunk, index, result)

    def _tell(self, one: Played, chunk: PlannedChunk, index: int, result: StepResult) -> None:
        one.hidden_sum = result.hidden_sums.get(index)
        one.prompt_logprobs += result.prompt_logprobs.get(index, [])
        one.embedding = result.embeddings.get(index, one.embedding)
        one.error = result.errors.get(index, "")
        one.generated += result.token_ids[index]
        one.context += result.token_ids[index]
        one.logprobs += result.logprobs.get(index, [])
        if chunk.samples and (not self._flights or one not in self._flights[-1].members):
            one.pending = None
        ends = {*self._runner.eos_token_ids, *one.params.stop_token_ids}
        stops = bool(one.generated) and not one.params.ignore_eos and one.generated[-1] in ends
        one.ended = stops or bool(one.error or one.embedding) or len(one.generated) >= one.params.max_tokens
