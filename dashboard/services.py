"""What the console needs of the process around it: the composition root puts it into each connection's scope."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, cast

from django.http import HttpRequest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.telemetry.feed import LiveFeed


class TextDelta(Protocol):
    """A piece of an answer. `finish_reason` is set on its last."""

    @property
    def text(self) -> str: ...

    @property
    def finish_reason(self) -> str | None: ...


class TokenCounts(Protocol):
    """How many tokens a prompt and its answer have."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...


class Answer(Protocol):
    """An answer as it comes. Raises a `DomainError` where the engine refuses or fails."""

    def __aiter__(self) -> AsyncIterator[TextDelta]: ...

    @property
    def usage(self) -> TokenCounts: ...


class Prompter(Protocol):
    """Who asks a pool's model."""

    async def prompt(
        self,
        pool: str,
        text: str,
        *,
        max_tokens: int,
        temperature: float,
        request_id: str,
        arrived_at: float,
        cleanup: contextlib.AsyncExitStack,
    ) -> Answer:
        """Start an answer; `cleanup` ends what still runs of it. Raises `DomainError`."""
        ...


class ConsoleServices(Protocol):
    """The parts of a web process that the console uses. `redis` belongs to the event loop, `blocking_redis` to
    threads."""

    @property
    def redis(self) -> Redis: ...

    @property
    def blocking_redis(self) -> BlockingRedis: ...

    @property
    def feed(self) -> LiveFeed: ...

    @property
    def prompter(self) -> Prompter: ...


class RequestScope(Protocol):
    """What belongs to one HTTP request; `cleanup` runs when it ends, whatever its end is."""

    @property
    def request_id(self) -> str: ...

    @property
    def arrived_at(self) -> float: ...

    @property
    def cleanup(self) -> contextlib.AsyncExitStack: ...


def services_in(scope: Mapping[str, Any]) -> ConsoleServices:
    """The process's parts, from an ASGI scope."""
    return cast(ConsoleServices, scope["footplate"])


def services_of(request: HttpRequest) -> ConsoleServices:
    """The process's parts, from a request's scope."""
    return services_in(cast(Any, request).scope)


def scope_of(request: HttpRequest) -> RequestScope:
    """What belongs to this request alone."""
    return cast(RequestScope, cast(Any, request).scope["footplate.request"])
