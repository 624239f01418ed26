"""Whether this process still takes new work."""

from __future__ import annotations

import time
from collections.abc import Callable

from serving.contracts.errors import RETRY_SECONDS, Unavailable

_LONGEST_RETRY_SECONDS = 60.0


class DrainState:
    """Owns the answer to "is this process leaving?"; on the event loop. Once begun, a drain is not taken back.

    `grace_seconds` is how long what runs may go on.
    """

    def __init__(self, *, grace_seconds: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._grace_seconds = grace_seconds
        self._monotonic = monotonic
        self._began_at: float | None = None

    @property
    def active(self) -> bool:
        """Whether new work is refused."""
        return self._began_at is not None

    def begin(self) -> None:
        """Refuse new work from now on; what runs goes on."""
        if self._began_at is None:
            self._began_at = self._monotonic()

    def check(self) -> None:
        """Raise `Unavailable` where new work is refused: until what runs has had its time, and as long as a start takes
        at least."""
        if self._began_at is None:
            return
        left_seconds = self._began_at + self._grace_seconds - self._monotonic()
        retry_after_seconds = min(_LONGEST_RETRY_SECONDS, max(RETRY_SECONDS, left_seconds))
        raise Unavailable("the server is shutting down", retry_after_seconds=retry_after_seconds)
