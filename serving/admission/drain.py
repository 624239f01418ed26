"""Whether this process still takes new work."""

from __future__ import annotations

from serving.contracts.errors import Unavailable


class DrainState:
    """Owns the answer to "is this process leaving?"; on the event loop. Once begun, a drain is not taken back."""

    def __init__(self, *, retry_after_seconds: float = 5.0) -> None:
        self._retry_after_seconds = retry_after_seconds
        self._active = False

    @property
    def active(self) -> bool:
        """Whether new work is refused."""
        return self._active

    def begin(self) -> None:
        """Refuse new work from now on; what runs goes on."""
        self._active = True

    def check(self) -> None:
        """Raise `Unavailable` where new work is refused."""
        if self._active:
            raise Unavailable("the server is shutting down", retry_after_seconds=self._retry_after_seconds)
