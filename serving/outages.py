"""What does not answer, and when to try it again."""

from __future__ import annotations

import time
from collections.abc import Callable

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 60.0


class Outage:
    """Owns since when something does not answer, and how long that took the last time; on one event loop.

    An outage is expected to last as long as the last one did, `usual_seconds` before there was any. Once it has lasted
    longer, it is expected to last as long again: whenever it ends, that was right within a factor of two.
    """

    def __init__(self, *, usual_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._usual_seconds = usual_seconds
        self._monotonic = monotonic
        self._since: float | None = None

    def note_silence(self) -> None:
        """It did not answer just now."""
        if self._since is None:
            self._since = self._monotonic()

    def note_answer(self) -> None:
        """It answers: an outage, where there is one, is over."""
        if self._since is not None:
            self._usual_seconds = self._monotonic() - self._since
            self._since = None

    @property
    def lasts_seconds(self) -> float | None:
        """How long it has lasted; None where there is none."""
        return None if self._since is None else self._monotonic() - self._since

    @property
    def retry_after_seconds(self) -> float:
        """When it is expected to be over, from 1 to 60 s."""
        lasts = self.lasts_seconds or 0.0
        rest = self._usual_seconds - lasts
        return max(_LEAST_SECONDS, min(_MOST_SECONDS, rest if rest > 0 else lasts))
