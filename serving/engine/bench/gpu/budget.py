"""Time that a run may take, and what is left out where it does not do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """A part that was not measured, and why."""

    part: str
    reason: str


class Budget:
    """Owns the time that is left of a run, and what was left out of it; on the thread that measures."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._seconds = seconds
        self.skipped: list[Skipped] = []
        """In the order in which they would have been measured."""

    @property
    def spent_seconds(self) -> float:
        """Since the run began."""
        return self._clock() - self._began

    @property
    def left_seconds(self) -> float:
        """May be negative: what has begun is never broken off."""
        return self._seconds - self.spent_seconds

    def spend(self, part: str, seconds: float, work: Callable[[], Any]) -> Any:
        """What `work` returns, which is expected to take `seconds`; None where so much is not left, or where it fails:
        a part that cannot be measured takes none of the others with it. `skipped` then says why."""
        if seconds > self.left_seconds:
            self.skip(part, f"needs about {seconds:.0f} s, and {max(0.0, self.left_seconds):.0f} s are left")
            return None
        try:
            return work()
        except Exception as error:
            self.skip(part, f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            return None

    def skip(self, part: str, reason: str) -> None:
        """Note that `part` is not measured."""
        self.skipped.append(Skipped(part, reason))
