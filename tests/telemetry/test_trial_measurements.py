"""A version that one engine tries: what is measured of that engine's requests, and of the others'."""

from __future__ import annotations

import msgspec
import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId
from serving.contracts.messages import AnnouncedTunables
from serving.contracts.tunables import Tunables
from serving.telemetry.frames import LiveFrame, LiveTrial
from serving.telemetry.intervals import IntervalRecorder, encode_batch
from serving.telemetry.pool_monitor import PoolMonitor
from serving.telemetry.reconciler import Trial
from serving.telemetry.trial_measurements import TrialMeasurements
from tests.telemetry.actions import read_frame
from tests.telemetry.conftest import POOL, Clock, Consoles

CANARY = EngineId("engine-1")
NOW = 50_000


def trial(*, since: float) -> Trial:
    return Trial(CANARY, AnnouncedTunables(7, Tunables()), since)


class Owner:
    """Measures requests of the engines that are named, and publishes that at a second of its choosing."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._recorder = IntervalRecorder(owner_id=OwnerId("web-1"), pool=POOL, clock=Clock())

    async def measure(self, at: int, *, twice: bool = False, **ttfts: float) -> None:
        """A request an engine, which finished; `engine_1=0.2` is one of `engine-1`."""
        for name, seconds in ttfts.items():
            engine_id = EngineId(name.replace("_", "-"))
            self._recorder.count_submitted()
            self._recorder.record_ttft(seconds, engine_id=engine_id)
            self._recorder.count_ended("finished:stop", was_running=False, engine_id=engine_id)
        batch = self._recorder.flush()
        assert batch is not None
        for index in range(1 + twice):
            await self._redis.xadd(
                keys.intervals(POOL), {keys.FIELD: encode_batch(batch)}, id=f"{at * 1000}-{index + 1}"
            )


async def test_its_engine_is_told_from_all_others_since_the_trial_began(redis: Redis) -> None:
    owner = Owner(redis)
    await owner.measure(NOW - 200, engine_1=9.0, engine_2=9.0)
    await owner.measure(NOW - 90, engine_1=0.2, engine_2=0.4, twice=True)
    await owner.measure(NOW - 5, engine_2=0.4, engine_3=0.8)
    tried = TrialMeasurements(redis, POOL, trial(since=NOW - 100))
    await tried.read(now=NOW)
    figures = tried.figures(now=NOW)
    assert (figures.version, figures.engine_id, figures.seconds) == (7, CANARY, 101)
    own, others = figures.tried, figures.others
    assert (own.whole.intervals.ttft_seconds.count, others.whole.intervals.ttft_seconds.count) == (1, 3)
    assert own.whole.intervals.ttft_seconds.p95 == pytest.approx(0.2, rel=0.01)
    assert others.whole.intervals.ttft_seconds.p50 == pytest.approx(0.4, rel=0.01)
    assert (own.minute.intervals.ttft_seconds.count, others.minute.intervals.ttft_seconds.count) == (0, 2)
    assert (own.whole.ended, own.minute.ended, others.minute.ended) == (
        {"finished:stop": 1},
        {},
        {"finished:stop": 2},
    )


async def test_a_trial_is_told_of_a_quarter_of_an_hour_back_at_most(redis: Redis) -> None:
    owner = Owner(redis)
    tried = TrialMeasurements(redis, POOL, trial(since=NOW - 5000))
    for at in (NOW - 1000, NOW - 500, NOW):
        await owner.measure(at, engine_1=0.2)
        await tried.read(now=NOW)
    figures = tried.figures(now=NOW)
    assert (figures.seconds, figures.tried.whole.intervals.ttft_seconds.count) == (900, 2)
    await tried.read(now=NOW + 600)
    later = tried.figures(now=NOW + 600).tried.whole
    assert (later.intervals.ttft_seconds.count, later.ended) == (1, {"finished:stop": 1})


async def test_frames_tell_of_the_trial_while_there_is_one_and_consoles_of_its_place(
    redis: Redis, consoles: Consoles
) -> None:
    monitor = PoolMonitor(redis, POOL, broadcast=consoles)
    now, _ = await redis.time()
    running = trial(since=float(now) - 30)
    await Owner(redis).measure(int(now) - 10, engine_1=0.2, engine_2=0.4)
    await monitor.publish_frame(trial=running)
    frame = await read_frame(redis)
    assert frame is not None
    assert frame.trial is not None
    assert frame.trial.others.minute.intervals.ttft_seconds.count == 1
    live = msgspec.json.decode(consoles.heard[-1][2], type=LiveFrame)
    assert live.trial == LiveTrial(version=7, engine_id=CANARY, since=float(now) - 30)
    await monitor.publish_frame()
    frame = await read_frame(redis)
    assert frame is not None
    assert frame.trial is None
