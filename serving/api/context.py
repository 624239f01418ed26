"""What the API's views need of the process around them, and what belongs to one request."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from django.http import HttpRequest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.admission.authenticator import Authenticator
from serving.admission.door import Door
from serving.admission.drain import DrainState
from serving.admission.principals import Principal
from serving.api.rate_limits import KnownLimits
from serving.contracts.actors import Actor
from serving.contracts.ids import PoolName, RequestId
from serving.gateway.generation import ChoiceDelta, Generation, Usage
from serving.gateway.text.tool_calls import ToolCallFormat

if TYPE_CHECKING:
    from serving.api.starting import Starter
    from serving.gateway.pools import PoolView
    from serving.telemetry.exposition import Exposition


class Stream(Protocol):
    """A request that runs: its text as it comes."""

    async def started(self) -> None:
        """Return once it was first scheduled; raise its `DomainError` where it was refused before."""

    def __aiter__(self) -> AsyncIterator[ChoiceDelta]: ...

    async def __anext__(self) -> ChoiceDelta: ...

    async def aclose(self) -> None:
        """End what still runs. Idempotent."""

    @property
    def num_ahead(self) -> int | None:
        """While it waits: sequences that its engine is to serve before it, as last heard; None where none has it. Under
        the order `fair` it is a bound, and fewer may come before it."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens so far; final after the last choice ended."""
        ...


class RequestGateway(Protocol):
    """Who runs requests."""

    def generate(self, generation: Generation, *, permit: Any = None) -> Stream:
        """Start a request now."""
        ...

    def keeps_waiting(self, pool: PoolName, tenant: str) -> bool:
        """Whether any of the tenant's requests of this process waits in the pool."""
        ...

    def pools(self) -> list[PoolView]:
        """All pools as last seen."""
        ...

    async def refresh_pools(self) -> None:
        """Look at the pools now."""


class Template(Protocol):
    """A model's chat template."""

    @property
    def tool_call_format(self) -> ToolCallFormat | None:
        """How the model writes calls of tools; None where it takes no tools."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool,
    ) -> str:
        """The prompt's text; raises a `DomainError` with the template's own reason where it refuses the messages."""
        ...


class ApiServices(Protocol):
    """The parts of the process that views use; `serving.config.services.Services` is one."""

    @property
    def redis(self) -> Redis: ...

    @property
    def blocking_redis(self) -> BlockingRedis: ...

    @property
    def authenticator(self) -> Authenticator: ...

    @property
    def gateway(self) -> RequestGateway: ...

    @property
    def door(self) -> Door: ...

    @property
    def starter(self) -> Starter: ...

    @property
    def chat_templates(self) -> Mapping[str, Template]:
        """By the model's name, one for each that is served."""
        ...

    @property
    def drain(self) -> DrainState: ...

    @property
    def observer(self) -> RejectionObserver: ...

    @property
    def exposition(self) -> Exposition: ...

    @property
    def header_hold_seconds(self) -> float: ...


class RejectionObserver(Protocol):
    """Hears of requests that no pool ever had."""

    def rejected(self, code: str) -> None:
        """A request was refused with one of the API's codes before any pool had it."""


@dataclasses.dataclass(slots=True)
class Passage:
    """Owns whether one HTTP request has come as far as the door: from there on a pool's books tell of it."""

    reached_door: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestScope:
    """One HTTP request. `arrived_at` is in seconds of this process's monotonic clock; `cleanup` runs when the request
    ends, whatever its end is: answered, refused, cancelled before or after the response began. `rate_limits` are told
    in the answer's headers. Whoever hands the request to the starter says so in `passage` before."""

    request_id: RequestId
    arrived_at: float
    cleanup: contextlib.AsyncExitStack
    rate_limits: KnownLimits
    passage: Passage = dataclasses.field(default_factory=Passage)


def services_of(request: HttpRequest) -> ApiServices:
    """The process's parts, as the entrance put them into the request's scope."""
    return cast(ApiServices, cast(Any, request).scope["footplate"])


def scope_of(request: HttpRequest) -> RequestScope:
    """What belongs to this request alone."""
    return cast(RequestScope, cast(Any, request).scope["footplate.request"])


def principal_of(request: HttpRequest) -> Principal:
    """Whose key the request bears; set once the key was checked."""
    return cast(Principal, cast(Any, request).auth)


def note_rejection(scope: Mapping[str, Any], code: str | None) -> None:
    """Count a refusal of the request with that ASGI scope, unless a pool's books tell of it."""
    request_scope = cast("RequestScope | None", scope.get("footplate.request"))
    if request_scope is not None and not request_scope.passage.reached_door:
        cast(ApiServices, scope["footplate"]).observer.rejected(code or "unknown")


def author_of(request: HttpRequest) -> Actor:
    """Whose doing it is, for versions and the audit."""
    principal = principal_of(request)
    name = f"{principal.tenant}, key {principal.key_prefix}"
    return Actor(name, "key", request_id=scope_of(request).request_id, address=request.META.get("REMOTE_ADDR") or "")
