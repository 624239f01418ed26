"""How many frames a page may have been sent that it has not taken in."""

from __future__ import annotations

from collections import deque


class Pacing:
    """Owns what one page owes acknowledgements for. Times are seconds of the caller's monotonic clock.

    A page that takes its frames in late is sent fewer of them; one that owes acknowledgements and gives none for
    `slow_seconds` is too slow.
    """

    def __init__(self, *, max_unacked: int, slow_seconds: float) -> None:
        self._max_unacked = max_unacked
        self._slow_seconds = slow_seconds
        self._owed: deque[int] = deque()
        self._owing_since = 0.0
        self.num_skipped = 0

    @property
    def num_owed(self) -> int:
        """Frames sent and not acknowledged."""
        return len(self._owed)

    def take_place(self, sequence: int, now: float) -> bool:
        """Whether this frame may be sent; then it counts as sent at `now`, otherwise as skipped."""
        if len(self._owed) >= self._max_unacked:
            self.num_skipped += 1
            return False
        if not self._owed:
            self._owing_since = now
        self._owed.append(sequence)
        return True

    def acknowledge(self, sequence: int, now: float) -> None:
        """The page has taken in the frames up to this one; a number that is not owed says nothing.

        Frames are told apart by when they were sent: the monitor's numbers begin anew when it lost count.
        """
        if sequence not in self._owed:
            return
        while self._owed.popleft() != sequence:
            pass
        self._owing_since = now

    def is_too_slow(self, now: float) -> bool:
        """Whether nothing was acknowledged for too long while something was owed."""
        return bool(self._owed) and now - self._owing_since >= self._slow_seconds
