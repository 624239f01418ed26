"""Token state of one sequence: a choice of a request as the engine sees it."""

from __future__ import annotations

import dataclasses
import enum

from serving.contracts.ids import OwnerId
from serving.contracts.messages import EngineTimings, FinishReason, SequenceKey, Submit
from serving.contracts.sampling import SamplingParams

Rank = tuple[float, ...]
"""A sequence's place among others; the smaller, the more deserving. No two sequences share one."""


class SequenceStatus(enum.Enum):
    """Where a sequence is. `PREEMPTED` waits as `WAITING` does, but has run before."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Owns one choice's tokens and its hold on the KV cache; mutated by the scheduler alone, on the engine's thread.

    `token_ids` is the whole context: the prompt, then what was generated, an earlier attempt's tokens included. The
    keys and values of its first `num_computed_tokens` positions lie in the blocks of `block_table`. Up to
    `prefill_end` they are computed by prefill (after a preemption that includes generated tokens), then by decode.
    Times are seconds of the clock that the scheduler is given.
    """

    key: SequenceKey
    attempt: int
    owner_id: OwnerId
    tenant: str
    params: SamplingParams
    token_ids: list[int]
    num_prompt_tokens: int
    ending_ids: frozenset[int]
    serial: int
    arrival: float
    rank: Rank = ()
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = dataclasses.field(default_factory=list)
    num_computed_tokens: int = 0
    prefill_end: int = 0
    num_preemptions: int = 0
    num_counted_prompt_tokens: int = 0
    """Prompt positions that were computed at least once."""
    first_scheduled_at: float | None = None
    is_start_told: bool = False
    """Whether its owner has heard that it was scheduled."""
    first_token_at: float | None = None

    @classmethod
    def of(cls, submit: Submit, *, eos_token_ids: frozenset[int], serial: int, now: float) -> Sequence:
        """The sequence that `submit` asks for; it arrived `submit.waited_seconds` before `now`."""
        ending_ids = frozenset() if submit.params.ignore_eos else eos_token_ids
        if submit.params.stop_token_ids:
            ending_ids = ending_ids.union(submit.params.stop_token_ids)
        return cls(
            key=submit.key,
            attempt=submit.attempt,
            owner_id=submit.owner_id,
            tenant=submit.tenant,
            params=submit.params,
            token_ids=[*submit.prompt_ids, *submit.generated_ids],
            num_prompt_tokens=len(submit.prompt_ids),
            ending_ids=ending_ids,
            serial=serial,
            arrival=now - max(0.0, submit.waited_seconds),
        )

    @property
    def num_tokens(self) -> int:
        """Length of the context."""
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        """Generated tokens of all attempts."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's tokens, copied."""
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def generated_ids(self) -> list[int]:
        """The generated tokens of all attempts, copied."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_prefilling(self) -> bool:
        """Whether its next chunk belongs to prefill."""
        return self.num_computed_tokens < self.prefill_end

    def append(self, token_id: int) -> FinishReason | None:
        """Add a generated token; says why the sequence ends with it, if it does."""
        self.token_ids.append(token_id)
        return self.end_reason()

    def end_reason(self) -> FinishReason | None:
        """Why the last generated token ends the sequence: `stop` for EOS and stop tokens, `length` at `max_tokens`.

        Under `min_tokens` neither EOS nor a stop token ends it. The context's end needs no rule of its own: a sequence
        whose `max_tokens` could reach beyond it is refused when it comes.
        """
        num_generated = len(self.token_ids) - self.num_prompt_tokens
        if num_generated and self.token_ids[-1] in self.ending_ids and num_generated >= self.params.min_tokens:
            return "stop"
        return "length" if num_generated >= self.params.max_tokens else None

    def advance(self, end: int) -> int:
        """Note that every position before `end` is computed; how many prompt positions are so for the first time."""
        self.num_computed_tokens = end
        num_new = min(end, self.num_prompt_tokens) - self.num_counted_prompt_tokens
        if num_new <= 0:
            return 0
        self.num_counted_prompt_tokens += num_new
        return num_new

    def timings(self, now: float) -> EngineTimings:
        """The three phases up to `now`, which follow each other and add up to the sequence's age.

        Queue: arrival to first scheduled. Prefill: from there to the first token of this attempt. Decode: from there
        on. What a preemption costs (waiting, recomputing) is part of the phase in which it happens.
        """
        scheduled = now if self.first_scheduled_at is None else self.first_scheduled_at
        sampled = now if self.first_token_at is None else self.first_token_at
        return EngineTimings(
            queue_seconds=max(0.0, scheduled - self.arrival),
            prefill_seconds=max(0.0, sampled - scheduled),
            decode_seconds=max(0.0, now - sampled),
            num_preemptions=self.num_preemptions,
        )
