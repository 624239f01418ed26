"""What the console needs of the process around it: the composition root puts it into each connection's scope."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from django.http import HttpRequest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts.ids import PoolName
from serving.telemetry.feed import LiveFeed
from serving.telemetry.steps import StepsFeed


class Spelling(Protocol):
    """How a token is written."""

    @property
    def name(self) -> str: ...


class Candidate(Protocol):
    """A token and how probable it was at its place (natural logarithm)."""

    @property
    def spelling(self) -> Spelling: ...

    @property
    def logprob(self) -> float | None: ...


class TokenEntry(Candidate, Protocol):
    """A token of an answer, beside those that were the most probable at its place."""

    @property
    def top(self) -> Sequence[Candidate]: ...


class TextDelta(Protocol):
    """A piece of an answer: text, and how many tokens it is of. `finish_reason` is set on its last; `logprobs` are
    those of its tokens, where they were asked for."""

    @property
    def text(self) -> str: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def logprobs(self) -> Sequence[TokenEntry] | None: ...

    @property
    def finish_reason(self) -> str | None: ...


class Timings(Protocol):
    """What its engine knows of a request."""

    @property
    def queue_seconds(self) -> float: ...

    @property
    def prefill_seconds(self) -> float: ...

    @property
    def decode_seconds(self) -> float: ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def num_cached_tokens(self) -> int: ...


class TokenCounts(Protocol):
    """How many tokens a prompt and its answer have, and how long they took, where an engine told."""

    @property
    def timings(self) -> Timings | None: ...

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

    async def play(
        self,
        pool: str,
        endpoint: Literal["chat", "completion"],
        given: Mapping[str, Any],
        *,
        request_id: str,
        arrived_at: float,
        cleanup: contextlib.AsyncExitStack,
    ) -> Answer:
        """As `prompt`, for a body of the API's. Raises `DomainError`."""
        ...


class PlayingTraffic(Protocol):
    """Sample traffic that is sent: who began it, and for how much longer."""

    @property
    def author(self) -> str: ...

    @property
    def seconds_left(self) -> float: ...


class SampleTraffic(Protocol):
    """Who sends sample traffic. Each raises `Unavailable` while Redis is out of reach."""

    async def start(self, pool: PoolName, *, author: str) -> PlayingTraffic | None:
        """Begin to send; what is sent already, where anything is."""
        ...

    async def stop(self, pool: PoolName) -> bool:
        """End what is sent; whether there was anything."""
        ...

    async def state(self, pool: PoolName) -> PlayingTraffic | None:
        """What is sent now."""
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
    def steps(self) -> StepsFeed: ...

    @property
    def prompter(self) -> Prompter: ...

    @property
    def sample_traffic(self) -> SampleTraffic: ...


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
