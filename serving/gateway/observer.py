"""What the gateway tells of its requests while they run: the seam to telemetry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from serving.contracts.ids import EngineId, PoolName, RequestId
from serving.contracts.messages import Span
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Origin


@dataclasses.dataclass(frozen=True, slots=True)
class KeptTexts:
    """What a request said and was answered. `read_prompt` gives the text that its model was given, and takes long for a
    long one: it is for a thread. `outputs` are the choices' texts as they were sent, cut where they are long."""

    read_prompt: Callable[[], str]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that ended, whatever its end was.

    `outcome` is `finished:<reason>`, `aborted`, `refused:<code>` or `failed:<code>`. Intervals are seconds, None where
    they did not come to pass; `itl_seconds` is their mean over the request's streams, `e2e_seconds` from its arrival to
    its end. `meets_ttft` and `meets_itl` say whether a request that finished kept the objectives in force (one without
    tokens has its first answer at its end); of others, nothing does. `num_attempts` is that of the choice that was
    submitted most often, `engine` the name of the engine that had the request last, or failed it, and `engine_id` its
    id, `sole_engine_id` that of the engine that had all of it from its first attempt on (None where several had),
    `tunables_version` what the first of these runs (a canary runs another than its pool), `params` what the first
    choice was sampled by: None where nobody let it in. `spans` are its first choice's, their offsets from the request's
    arrival.
    """

    request_id: RequestId
    pool: PoolName
    outcome: str
    was_scheduled: bool
    e2e_seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    num_choices: int = 1
    queue_seconds: float | None = None
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    meets_ttft: bool = False
    meets_itl: bool = False
    num_preemptions: int = 0
    num_attempts: int = 0
    engine: str = ""
    engine_id: EngineId | None = None
    sole_engine_id: EngineId | None = None
    tunables_version: int | None = None
    origin: Origin = dataclasses.field(default_factory=Origin)
    params: SamplingParams | None = None
    num_stop_strings: int = 0
    priority: int = 0
    timeout_seconds: float | None = None
    spans: tuple[Span, ...] = ()
    texts: KeptTexts | None = None

    @property
    def has_finished(self) -> bool:
        """Whether it came to its own end."""
        return self.outcome.startswith("finished:")


class RequestObserver(Protocol):
    """Hears every request's milestones. Called on the gateway's event loop, per token: must be cheap.

    All intervals are seconds of the gateway's monotonic clock, but for `queue_seconds`, whose engine part is the
    engine's. Each submitted request ends in exactly one call of `ended`. `engine_id` is whose doing it was; None where
    no engine has said that it has the request, and of an interval in which it moved from one to another.
    """

    def submitted(self, pool: PoolName) -> None:
        """A request was let in and now waits."""

    def scheduled(self, pool: PoolName, *, queue_seconds: float, engine_id: EngineId | None) -> None:
        """A request was first scheduled: it runs from now on."""

    def first_token(self, pool: PoolName, *, ttft_seconds: float, engine_id: EngineId | None) -> None:
        """A request's first token is on its way to the client."""

    def token_gap(self, pool: PoolName, *, itl_seconds: float, engine_id: EngineId | None) -> None:
        """One of a stream's later tokens is on its way."""

    def ended(self, ended: Ended) -> None:
        """A request ended."""
