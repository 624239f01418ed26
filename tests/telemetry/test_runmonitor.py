"""The monitor as a process: it finds pools in the database, and leaves cleanly when told to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables, decode_announced
from serving.contracts.tunables import Tunables
from serving.management.commands import runmonitor
from serving.telemetry.feed import LiveFeed, read_history
from serving.telemetry.frames import LiveFrame
from serving.telemetry.reconciler import StoredForPool
from serving.tuning.models import TunablesVersion
from serving.tuning.services import ensure_pool
from tests.telemetry.layers import make_layer

POOL = PoolName("nightly")
ROOT = Path(__file__).resolve().parent.parent.parent
MAKE_POOL = "from serving.tuning.services import ensure_pool; ensure_pool('nightly', 'tiny')"


def manage(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "manage.py"), *arguments]


@pytest.fixture
def environment(tmp_path: Path, valkey: str) -> dict[str, str]:
    """Of processes that find a database with one pool, and a Redis that holds nothing."""
    settings = {
        "FOOTPLATE_HOME": str(tmp_path),
        "REDIS_URL": valkey,
        "DJANGO_SETTINGS_MODULE": "serving.config.settings",
    }
    environment = {**os.environ, **settings}
    for arguments in (("migrate", "-v0"), ("shell", "-v0", "-c", MAKE_POOL)):
        subprocess.run(manage(*arguments), env=environment, check=True, timeout=120)
    return environment


@pytest.fixture
def monitor(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`manage.py runmonitor`, started."""
    process = subprocess.Popen(manage("runmonitor"), env=environment, stderr=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.django_db
def test_values_that_are_not_admitted_any_more_cost_their_own_pool_alone() -> None:
    for name in ("bad", "good"):
        ensure_pool(name, "tiny")
    TunablesVersion.objects.filter(pool__name="bad").update(values={"max_running": -1})
    stored = runmonitor.stored_tunables()
    assert stored["bad"] is None
    assert stored["good"] == StoredForPool(AnnouncedTunables(1, Tunables()))


@pytest.mark.stack
def test_announces_a_stored_pool_and_leaves_cleanly_on_sigterm(
    environment: dict[str, str], monitor: subprocess.Popen[bytes]
) -> None:
    announced = keys.announced_tunables(POOL)
    with Redis.from_url(environment["REDIS_URL"]) as redis:
        deadline = time.monotonic() + 60
        while redis.get(announced) is None:
            assert monitor.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        monitor.send_signal(signal.SIGTERM)
        _, log = monitor.communicate(timeout=20)
        assert monitor.returncode == 0, log.decode()
        assert b"Traceback" not in log
        assert redis.get(keys.monitor_lease()) is None
        assert decode_announced(redis.get(announced)).tunables == Tunables()


@pytest.mark.stack
@pytest.mark.usefixtures("monitor")
async def test_its_frames_reach_a_web_process_and_its_points_the_history(environment: dict[str, str]) -> None:
    feed = LiveFeed(make_layer(environment["REDIS_URL"]))
    await feed.start()
    watcher = feed.watch(POOL)
    async with asyncio.timeout(60):
        frames = [await watcher.next() for _ in range(2)]
    await feed.close()
    live = [msgspec.json.decode(frame.text, type=LiveFrame) for frame in frames]
    assert [frame.sequence for frame in frames] == [frame.sequence for frame in live]
    assert live[1].sequence == live[0].sequence + 1
    assert live[0].pool == POOL
    async with AsyncRedis.from_url(environment["REDIS_URL"]) as redis:
        assert await read_history(redis, POOL, since=None)
