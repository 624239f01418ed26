"""Keys that this process does not know. Anyone may make up as many as they like: what that costs is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from serving.contracts.errors import Unavailable

_MAX_AT_ONCE = 4
_MAX_WAITING = 1024
_MAX_REMEMBERED = 10_000
_LONGEST_RETRY_SECONDS = 60.0


class KeyLookUps:
    """Owns the turns of those who look a key up in the database, and which prefixes were found to open nothing; on one
    event loop.

    Such a prefix is remembered under its epoch only, `life_seconds` at most, the oldest forgotten first: what changes a
    key begins another epoch, and nobody presents a new one before it is made. `max_at_once` look up at once, so that a
    flood of keys that differ leaves the database to others, and `max_waiting` more wait for their turn.
    """

    def __init__(
        self,
        *,
        life_seconds: float,
        max_at_once: int = _MAX_AT_ONCE,
        max_waiting: int = _MAX_WAITING,
        max_remembered: int = _MAX_REMEMBERED,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._turns = asyncio.Semaphore(max_at_once)
        self._max_at_once = max_at_once
        self._max_waiting = max_waiting
        self._max_remembered = max_remembered
        self._life_seconds = life_seconds
        self._monotonic = monotonic
        self._num_waiting = 0
        self._last_took_seconds = 0.0
        self._opening_nothing: dict[str, tuple[str, float]] = {}

    def opens_nothing(self, prefix: str, *, epoch: str | None) -> bool:
        """Whether that is known of the prefix, `epoch` being the one in force."""
        found = self._opening_nothing.get(prefix)
        return found is not None and found[0] == epoch and self._monotonic() - found[1] < self._life_seconds

    def note_nothing(self, prefix: str, *, epoch: str) -> None:
        """The database, asked under `epoch`, has no key with the prefix that is valid."""
        self._opening_nothing.pop(prefix, None)
        while len(self._opening_nothing) >= self._max_remembered:
            del self._opening_nothing[next(iter(self._opening_nothing))]
        self._opening_nothing[prefix] = (epoch, self._monotonic())

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A block to look a key up in, entered when it is its turn; raises `Unavailable` where too many wait."""
        if self._num_waiting >= self._max_waiting:
            wait_seconds = min(_LONGEST_RETRY_SECONDS, self._num_waiting / self._max_at_once * self._last_took_seconds)
            raise Unavailable("too many unknown keys are being looked up", retry_after_seconds=wait_seconds)
        self._num_waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._num_waiting -= 1
        began_at = self._monotonic()
        try:
            yield
        finally:
            self._last_took_seconds = self._monotonic() - began_at
            self._turns.release()
