"""How fast a pool's engines take in what waits, measured from what they publish of themselves.

Only time in which an engine could have done no more counts: at other times its figures tell what was asked of it, not
what it can do. So what was measured is kept while an engine is idle, and the next burst is judged by it. Two things
hold the waiting back, and each is measured while it did. While places are free, tokens have to be computed before more
sequences can join: prompt tokens a second. While all places are taken, one has to leave: sequences a second.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from serving.contracts.ids import EngineId
from serving.contracts.messages import EngineSnapshot

WINDOW_SECONDS = 30.0
"""Time constant of the exponential weights, in measured time."""

_LEAST_SECONDS = 1.0
_LEAST_TOKENS = 1.0
_LEAST_SEQUENCES = 3.0
"""What has to be seen, weighted, before a rate is taken for known: nothing is refused on a guess."""
_PLACES_A_LEAVER = 8
"""Of so many places one may stand empty between two steps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolPace:
    """A pool as last seen. Rates are those of all its engines together, a second; None where nothing is known."""

    prompt_tokens_per_second: float | None = None
    sequences_per_second: float | None = None
    num_free_places: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0


class PaceMeter:
    """Owns what was measured of one pool's engines; used on the gateway's event loop.

    An engine that was not measured yet is taken to be like the mean of the others.
    """

    def __init__(self) -> None:
        self._engines: dict[EngineId, _EngineMeter] = {}
        self._pace = PoolPace()

    @property
    def pace(self) -> PoolPace:
        """As of the last look."""
        return self._pace

    def look(self, snapshots: Sequence[EngineSnapshot], *, max_running: int) -> None:
        """Take in what the pool's engines say now. Those that are not among them are forgotten."""
        self._engines = {
            snapshot.engine_id: self._engines.get(snapshot.engine_id) or _EngineMeter() for snapshot in snapshots
        }
        for snapshot in snapshots:
            self._engines[snapshot.engine_id].look(snapshot, max_running=max_running)
        meters = self._engines.values()
        self._pace = PoolPace(
            prompt_tokens_per_second=_sum_of([meter.prompt_tokens.known() for meter in meters]),
            sequences_per_second=_sum_of([meter.sequences.known() for meter in meters]),
            num_free_places=sum(max(0, max_running - snapshot.num_running) for snapshot in snapshots),
            num_waiting=sum(snapshot.num_waiting for snapshot in snapshots),
            num_waiting_tokens=sum(snapshot.num_waiting_tokens for snapshot in snapshots),
        )


class _EngineMeter:
    """Owns one engine's two rates; time is the engine's own."""

    def __init__(self) -> None:
        self.prompt_tokens = _Rate(least=_LEAST_TOKENS)
        self.sequences = _Rate(least=_LEAST_SEQUENCES)
        self._last: EngineSnapshot | None = None
        self._max_running = 0

    def look(self, now: EngineSnapshot, *, max_running: int) -> None:
        if max_running != self._max_running:
            self.sequences, self._max_running = _Rate(least=_LEAST_SEQUENCES), max_running
        last, self._last = self._last, now
        if last is None:
            return
        seconds = now.uptime_seconds - last.uptime_seconds
        if seconds <= 0:
            return
        num_full = sum(_is_full(seen, max_running) for seen in (last, now))
        if num_full == 2:
            self.sequences.note(now.left_total - last.left_total, seconds)
        elif num_full == 0 and min(last.num_waiting, now.num_waiting) > 0:
            self.prompt_tokens.note(now.prompt_tokens_total - last.prompt_tokens_total, seconds)


def _is_full(seen: EngineSnapshot, max_running: int) -> bool:
    """Whether places are what those that wait lack. A snapshot is taken between two steps, when the places of those who
    have just left stand empty for the moment."""
    num_just_left = max(1, max_running // _PLACES_A_LEAVER)
    if seen.num_running < max_running - num_just_left:
        return False
    # Of a few places a single one is much: there it has to be seen that somebody waits for it.
    return max_running >= _PLACES_A_LEAVER or seen.num_running + seen.num_waiting >= max_running


class _Rate:
    """Owns an amount and the seconds that it took, both weighted by their age.

    Below `least` nothing is known; so what came last is kept for as long as it takes to see more of what is slow.
    """

    def __init__(self, *, least: float) -> None:
        self._least = least
        self._amount = 0.0
        self._seconds = 0.0

    def note(self, amount: float, seconds: float) -> None:
        """So much came about in so long; what was noted before counts less."""
        weight = math.exp(-seconds / WINDOW_SECONDS)
        if self._amount * weight < self._least:
            weight = 1.0
        self._amount = self._amount * weight + amount
        self._seconds = self._seconds * weight + seconds

    def known(self) -> float | None:
        """The rate a second; None where too little was seen."""
        if self._amount < self._least or self._seconds < _LEAST_SECONDS:
            return None
        return self._amount / self._seconds


def _sum_of(rates: Iterable[float | None]) -> float | None:
    all_rates = list(rates)
    known = [rate for rate in all_rates if rate is not None]
    return sum(known) / len(known) * len(all_rates) if known else None
