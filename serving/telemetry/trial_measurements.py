"""What is measured of a version that one engine tries: that engine's requests against those of the others."""

from __future__ import annotations

from collections import Counter

from redis.asyncio import Redis

from serving.contracts.ids import PoolName
from serving.telemetry.frames import SNAPSHOT_WINDOW_SECONDS, Share, Side, TrialFigures, summarise_intervals
from serving.telemetry.interval_stream import IntervalStream
from serving.telemetry.intervals import EngineShare
from serving.telemetry.reconciler import Trial
from serving.telemetry.ring import KEPT_SECONDS, IntervalRing


class _SideRing:
    """Owns what one side did in the last quarter of an hour; used by one thread."""

    def __init__(self) -> None:
        self._intervals = IntervalRing()
        self._ended: dict[int, Counter[str]] = {}

    def add(self, share: EngineShare, *, at: int) -> None:
        self._intervals.add(share.intervals, at=at)
        if share.ended:
            self._ended.setdefault(at, Counter()).update(share.ended)

    def expire(self, *, now: int) -> None:
        self._intervals.expire(now=now)
        if self._ended and next(iter(self._ended)) < now - KEPT_SECONDS:
            self._ended = {second: ended for second, ended in self._ended.items() if second >= now - KEPT_SECONDS}

    def share(self, *, since: int, until: int) -> Share:
        ended: Counter[str] = Counter()
        for second, counts in self._ended.items():
            if since <= second < until:
                ended.update(counts)
        intervals = self._intervals.total(since=since, until=until)
        return Share(intervals=summarise_intervals(intervals), ended=dict(ended))


class TrialMeasurements:
    """Owns what both sides of one trial did since it began, a quarter of an hour at most, and its own place in the
    pool's stream of intervals; on the monitor's event loop.

    Made when a trial is first heard of and dropped when it is over, so that a pool in which nothing is tried pays
    nothing. It begins where the trial did, so that a monitor that takes over knows what the one before knew.
    """

    def __init__(self, redis: Redis, pool: PoolName, trial: Trial) -> None:
        self.trial = trial
        # What cannot be read is told by whoever reads for the pool.
        self._stream = IntervalStream(redis, pool, is_quiet=True)
        self._tried, self._others = _SideRing(), _SideRing()

    async def read(self, *, now: int) -> None:
        """Take in what is new, and drop what is too old. Errors of Redis pass through."""
        async for batch, at in self._stream.read(begins_at=self._begins_at(now), now=now):
            for engine_id, share in batch.by_engine.items():
                side = self._tried if engine_id == self.trial.engine_id else self._others
                side.add(share, at=at)
        for side in (self._tried, self._others):
            side.expire(now=now)

    def figures(self, *, now: int) -> TrialFigures:
        """Both sides over the last minute and since the trial began, second `now` included."""
        begins_at = self._begins_at(now)
        return TrialFigures(
            version=self.trial.tunables.version,
            engine_id=self.trial.engine_id,
            since=self.trial.since,
            seconds=now + 1 - begins_at,
            tried=_side_of(self._tried, begins_at=begins_at, now=now),
            others=_side_of(self._others, begins_at=begins_at, now=now),
        )

    def _begins_at(self, now: int) -> int:
        return min(now, max(int(self.trial.since), now + 1 - KEPT_SECONDS))


def _side_of(ring: _SideRing, *, begins_at: int, now: int) -> Side:
    minute = max(begins_at, now + 1 - SNAPSHOT_WINDOW_SECONDS)
    whole = ring.share(since=begins_at, until=now + 1)
    return Side(minute=whole if minute == begins_at else ring.share(since=minute, until=now + 1), whole=whole)
