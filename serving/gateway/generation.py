"""What a caller asks the gateway for, and what it hears of it."""

from __future__ import annotations

import dataclasses
from typing import Literal

from serving.contracts.ids import PoolName, RequestId
from serving.contracts.messages import EngineTimings
from serving.contracts.sampling import SamplingParams


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A validated request, tokenised and let in at the door. One entry of `params` a choice.

    `arrived_at` is when the request reached this process, in seconds of its monotonic clock: the intervals count from
    there.
    """

    request_id: RequestId
    pool: PoolName
    tenant: str
    prompt_ids: list[int]
    params: tuple[SamplingParams, ...]
    stop: tuple[str, ...]
    arrived_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """New text of one choice, ready to send: whole characters, nothing that may still become a stop string.

    `text` may be empty where `finish_reason` is set. After a finish reason the choice says nothing more.
    """

    choice: int
    text: str
    num_tokens: int
    finish_reason: Literal["stop", "length"] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole request. `completion_tokens` counts what was generated, a stop string's tokens included."""

    prompt_tokens: int
    completion_tokens: int
    timings: EngineTimings | None = None
