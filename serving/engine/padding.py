"""What a rectangular batch would have wasted: counted for `static` mode, computed never."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from serving.engine.sequence import Sequence


class StaticBatch:
    """Owns the size of the static batch that runs; used by the engine's thread only."""

    def __init__(self) -> None:
        self._size = 0

    def form(self, members: Seq[Sequence]) -> int:
        """Begin a batch; the positions by which its shorter contexts would be padded to the longest."""
        self._size = len(members)
        longest = max((member.num_tokens for member in members), default=0)
        return sum(longest - member.num_tokens for member in members)

    def num_idle_slots(self, *, num_running: int) -> int:
        """Slots that stay empty in a step since their members have ended and nobody may join."""
        return max(0, self._size - num_running)

    def dissolve(self) -> None:
        """Forget the batch: places are filled as they fall free."""
        self._size = 0
