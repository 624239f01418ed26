"""The caller's end of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from serving.contracts.errors import DomainError
from serving.contracts.messages import EngineTimings
from serving.gateway.generation import ChoiceDelta, Usage, timings_together


class GenerationStream(AsyncIterator[ChoiceDelta]):
    """Owns what has been produced for a request and not yet been read; lives on the gateway's event loop.

    Bounded by the request itself: it never holds more entries than the request may have tokens. Whoever holds it calls
    `aclose` at the end, whatever the end was.
    """

    def __init__(self, *, num_prompt_tokens: int, num_choices: int, on_close: Callable[[], None]) -> None:
        self._ready: asyncio.Queue[ChoiceDelta | DomainError] = asyncio.Queue()
        self._first_scheduled = asyncio.Event()
        self._num_open_choices = num_choices
        self._num_prompt_tokens = num_prompt_tokens
        self._failure: DomainError | None = None
        self._on_close = on_close
        self.num_completion_tokens = 0
        self.num_ahead: int | None = None
        """While it waits: sequences before it at its engine, as last heard; None where none has it."""
        self._timings: dict[int, EngineTimings] = {}
        self._num_cached_tokens = num_prompt_tokens

    # --- the caller's side ---

    async def started(self) -> None:
        """Return once the request was first scheduled; raise its `DomainError` where it was refused before."""
        await self._first_scheduled.wait()
        if self._failure is not None and self._ready.qsize() <= 1:
            raise self._failure

    async def __anext__(self) -> ChoiceDelta:
        """The next text; raises the request's `DomainError` where it failed."""
        if self._num_open_choices == 0 and self._ready.empty():
            raise StopAsyncIteration
        item = await self._ready.get()
        if isinstance(item, DomainError):
            self._num_open_choices = 0
            raise item
        if item.finish_reason is not None:
            self._num_open_choices -= 1
        return item

    async def aclose(self) -> None:
        """End what still runs. Idempotent."""
        self._on_close()

    @property
    def usage(self) -> Usage:
        """Tokens so far; final after the last choice ended."""
        return Usage(
            self._num_prompt_tokens,
            self.num_completion_tokens,
            timings_together(self._timings.values()),
            num_cached_tokens=self._num_cached_tokens if self._timings else 0,
        )

    # --- the gateway's side ---

    def mark_started(self) -> None:
        """The request was first scheduled."""
        self._first_scheduled.set()

    def note_timings(self, timings: EngineTimings, *, choice: int = 0) -> None:
        """What the engine says of a choice. The first one computes what its siblings then find cached: the least of
        what they found is what was cached for the request."""
        self._timings[choice] = timings
        self._num_cached_tokens = min(self._num_cached_tokens, timings.num_cached_tokens)

    def note_decode(self, choice: int, *, decode_seconds: float) -> None:
        """The gateway has ended a choice of which the engine has told the beginning."""
        known = self._timings.get(choice)
        if known is not None:
            self._timings[choice] = msgspec.structs.replace(known, decode_seconds=decode_seconds)

    def push(self, delta: ChoiceDelta) -> None:
        """Hand over new text."""
        self._ready.put_nowait(delta)

    def fail(self, error: DomainError) -> None:
        """Nothing follows but `error`."""
        self._failure = error
        self._ready.put_nowait(error)
        self._first_scheduled.set()
