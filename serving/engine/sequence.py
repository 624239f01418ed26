"""Token state of one sequence: a choice of a request as the engine sees it."""

from __future__ import annotations

import dataclasses
import enum
import math
import sys

from serving.contracts.ids import OwnerId
from serving.contracts.messages import EngineTimings, FinishReason, SequenceKey, Submit, TokenLogprobs
from serving.contracts.sampling import SamplingParams
from serving.engine.plan import HiddenSum
from serving.engine.prefix_cache import Chain, Namespace
from serving.engine.spans import SpanLog

Rank = tuple[float, ...]
"""A sequence's place among others; the smaller, the more deserving. No two sequences share one."""
NEVER = sys.maxsize
"""A position that no context reaches."""


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
    keys and values of its first `num_computed_tokens` positions lie in the blocks of `block_table`, and those up to
    `num_planned_tokens` will when the plans in flight are computed. Up to `prefill_end` they are computed by prefill
    (after a preemption that includes generated tokens), then by decode. Times are seconds of the clock that the
    scheduler is given.
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
    deadline: float = math.inf
    """When it has waited for as long as its owner allows."""
    chain: Chain
    final_ids: frozenset[int] = frozenset()
    """Of its `ending_ids` those that end it under `min_tokens` too: EOS, where it follows a grammar."""
    family: int = 0
    """Live choices of one request that have one prompt have one family, and no others do."""
    priority: int = 0
    weight: float = 1.0
    rank: Rank = ()
    protection: int = 0
    """Above 0 for one that gave way so often that it goes before all others; of such, the smaller before the larger."""
    is_long: bool = False
    """Whether it waits in the long lane."""
    is_bound_to_host: bool = False
    """Whether its next step depends on its text, or on sums, that the host keeps. See `flights`."""
    is_refusable: bool = True
    """Whether it is refused when it has waited too long: nothing of its request has begun, here or elsewhere."""
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = dataclasses.field(default_factory=list)
    next_block_end: int = NEVER
    """Where the next block ends that could be found by others once it is computed."""
    num_computed_tokens: int = 0
    num_planned_tokens: int = 0
    """Positions that are computed or in flight: where its next chunk starts. May be one more than `token_ids` has, as
    the token that a plan in flight chooses may be in the next already."""
    prefill_start: int = 0
    prefill_end: int = 0
    num_preemptions: int = 0
    num_counted_prompt_tokens: int = 0
    """Prompt positions that were computed, or found cached, at least once."""
    num_cached_tokens: int = 0
    """Prompt positions that were found computed when it first started."""
    first_scheduled_at: float | None = None
    is_start_told: bool = False
    """Whether its owner has heard that it was scheduled."""
    first_token_at: float | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Of the prompt's tokens from the second on: what was asked for, as far as it is computed and not yet told."""
    hidden_sum: HiddenSum | None = None
    """Of the positions that are computed, for an embedding."""
    spans: SpanLog = dataclasses.field(default_factory=SpanLog)

    @classmethod
    def of(
        cls,
        submit: Submit,
        *,
        eos_token_ids: frozenset[int],
        serial: int,
        now: float,
        long_from: int | None = None,
    ) -> Sequence:
        """The sequence that `submit` asks for; it arrived `submit.waited_seconds` before `now`. `long_from` is the
        runner's (see `DividedRunner`)."""
        ending_ids = frozenset() if submit.params.ignore_eos else eos_token_ids
        if submit.params.stop_token_ids:
            ending_ids = ending_ids.union(submit.params.stop_token_ids)
        is_long = long_from is not None and len(submit.prompt_ids) + submit.params.max_tokens > long_from
        arrival = now - max(0.0, submit.waited_seconds)
        timeout_seconds = submit.timeout_seconds
        if timeout_seconds is None or not math.isfinite(timeout_seconds):
            timeout_seconds = math.inf  # what is no number would be sorted among numbers until it is refused
        return cls(
            key=submit.key,
            attempt=submit.attempt,
            owner_id=submit.owner_id,
            tenant=submit.tenant,
            params=submit.params,
            token_ids=[*submit.prompt_ids, *submit.generated_ids],
            num_prompt_tokens=len(submit.prompt_ids),
            ending_ids=ending_ids,
            final_ids=frozenset() if submit.params.grammar is None else eos_token_ids,
            serial=serial,
            arrival=arrival,
            deadline=arrival + timeout_seconds,
            priority=submit.priority,
            weight=submit.weight,
            is_refusable=not submit.generated_ids,
            is_bound_to_host=_is_bound_to_host(submit.params),
            chain=Chain(Namespace(submit.tenant, submit.cache_salt, is_long)),
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
        return self.num_planned_tokens < self.prefill_end

    @property
    def reads_prompt(self) -> bool:
        """Whether its owner is still to be told how probable the prompt's tokens are."""
        return self.params.num_prompt_logprobs is not None and len(self.token_ids) == self.num_prompt_tokens

    def append(self, token_id: int) -> FinishReason | None:
        """Add a generated token; says why the sequence ends with it, if it does."""
        self.token_ids.append(token_id)
        return self.end_reason()

    def end_reason(self) -> FinishReason | None:
        """Why the last generated token ends the sequence: `stop` for EOS and stop tokens, `length` at `max_tokens`.

        Under `min_tokens` neither EOS nor a stop token ends it, but EOS after a grammar does, since nothing else may
        follow there. The context's end needs no rule of its own: a sequence
        whose `max_tokens` could reach beyond it is refused when it comes. What embeds generates nothing.
        """
        if self.params.embeds:
            return None
        num_generated = len(self.token_ids) - self.num_prompt_tokens
        may_end = num_generated and self.token_ids[-1] in self.ending_ids
        if may_end and (num_generated >= self.params.min_tokens or self.token_ids[-1] in self.final_ids):
            return "stop"
        return "length" if num_generated >= self.params.max_tokens else None

    def advance(self, end: int) -> int:
        """Note that every position before `end` is computed; how many prompt positions are so for the first time.

        Those that were found cached count with the first that is computed after them.
        """
        self.num_computed_tokens = end
        num_new = min(end, self.num_prompt_tokens) - self.num_counted_prompt_tokens
        if num_new <= 0:
            return 0
        self.num_counted_prompt_tokens += num_new
        return num_new

    def note_prompt_logprobs(self, entries: list[TokenLogprobs], *, start: int) -> None:
        """Keep what is new of `entries`, the first of which belongs to the token at position `start + 1`. After a
        preemption the prompt is computed, and told of, again."""
        known = self.prompt_logprobs or []
        assert start <= len(known), "a part of the prompt was never computed"
        self.prompt_logprobs = known + entries[len(known) - start :]

    def take_prompt_logprobs(self) -> list[TokenLogprobs] | None:
        """What was kept of the prompt, to be told once."""
        if self.prompt_logprobs is None:
            return None
        taken, self.prompt_logprobs = self.prompt_logprobs, None
        return taken

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
            num_cached_tokens=self.num_cached_tokens,
            # What was sampled last is computed by nobody yet.
            spans=self.spans.told(now, position=len(self.token_ids) - 1, since=scheduled),
        )


def _is_bound_to_host(params: SamplingParams) -> bool:
    """Whether a step needs of the one before what the host alone has: the text, for a grammar's mask and for the counts
    of penalties, or the sum of an embedding."""
    return (
        params.grammar is not None
        or params.embeds
        or params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )
