"""What a caller asks the gateway for, and what it hears of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from serving.contracts.ids import PoolName, RequestId
from serving.contracts.messages import EngineTimings
from serving.contracts.sampling import SamplingParams
from serving.gateway.logprobs import PromptEntries, TokenEntry

Endpoint = Literal["chat", "completion", "embedding", "console"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who asked, and how: what nothing is decided by, and the log of requests tells. `tenant_name` and `key_prefix` are
    empty where there are none; texts are kept only with `keeps_text`. `traceparent` names the trace that the request
    belongs to (W3C Trace Context), as its client gave it."""

    endpoint: Endpoint = "console"
    is_streamed: bool = False
    tenant_id: int | None = None
    tenant_name: str = ""
    key_prefix: str = ""
    keeps_text: bool = False
    traceparent: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A validated request, tokenised and let in at the door. One entry of `params` a choice.

    `arrived_at` is when the request reached this process, in seconds of its monotonic clock: the intervals count from
    there. `weight` is the tenant's share where the pool's order is `fair`. `timeout_seconds` is how long it may wait
    before it is first scheduled, if it has a bound of its own.
    """

    request_id: RequestId
    pool: PoolName
    tenant: str
    prompt_ids: list[int]
    params: tuple[SamplingParams, ...]
    stop: tuple[str, ...]
    arrived_at: float
    priority: int = 0
    weight: float = 1.0
    cache_salt: str = ""
    timeout_seconds: float | None = None
    origin: Origin = dataclasses.field(default_factory=Origin)


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """New text of one choice, ready to send: whole characters, nothing that may still become a stop string.

    `text` may be empty where `finish_reason` is set. After a finish reason the choice says nothing more. `logprobs`, of
    a choice that asked for them, are those of the tokens whose text ends with this delta; `prompt` are the prompt's, in
    the first delta of a choice that asked. `embedding` is the prompt's (see `Finished`), in the only delta of a choice
    that embeds.
    """

    choice: int
    text: str
    num_tokens: int
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: tuple[TokenEntry, ...] | None = None
    prompt: PromptEntries | None = None
    embedding: bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole request. `completion_tokens` counts what was generated, a stop string's tokens included;
    `num_cached_tokens` are those of the prompt that were not computed for it, since they were cached."""

    prompt_tokens: int
    completion_tokens: int
    timings: EngineTimings | None = None
    num_cached_tokens: int = 0


def timings_together(timings: Iterable[EngineTimings]) -> EngineTimings | None:
    """Those of a request of several sequences: it waits until the first of them is scheduled, takes as long as the
    slowest of them, and has the preemptions of all. None where there are none; cached tokens are the first one's."""
    known = list(timings)
    if not known:
        return None
    return EngineTimings(
        queue_seconds=min(timing.queue_seconds for timing in known),
        prefill_seconds=max(timing.prefill_seconds for timing in known),
        decode_seconds=max(timing.decode_seconds for timing in known),
        num_preemptions=sum(timing.num_preemptions for timing in known),
        num_cached_tokens=known[0].num_cached_tokens,
    )
