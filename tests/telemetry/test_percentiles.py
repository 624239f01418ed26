"""Percentiles of frames against exact ones: known values from five processes, over every window."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts import keys
from serving.telemetry.frames import (
    INTERVAL_NAMES,
    PERCENTILES,
    WINDOWS_SECONDS,
    Frame,
    decode_frame,
    summarise_intervals,
)
from serving.telemetry.measurements import Measurements
from serving.telemetry.models import Rollup
from serving.telemetry.pool_monitor import PoolMonitor
from serving.telemetry.rollup_drain import drain_chronicle
from serving.telemetry.rollups import RESOLUTIONS, decode_content, merge
from serving.telemetry.stretches import Stretches
from serving.threads import in_thread
from tests.telemetry.actions import until
from tests.telemetry.conftest import Consoles
from tests.telemetry.known_values import (
    BEGINNING,
    NUM_OWNERS,
    NUM_SLOTS,
    NUM_VALUES,
    POOL,
    READY,
    SLOT_SECONDS,
    Values,
    known_values,
    values_of_slot,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def owners(valkey: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Five processes that publish their shares when told to."""
    command = [sys.executable, "-m", "tests.telemetry.known_values", valkey]
    processes = [
        subprocess.Popen([*command, str(owner)], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for owner in range(NUM_OWNERS)
    ]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


async def publish_all(redis: Redis, owners: list[subprocess.Popen[bytes]]) -> int:
    """Have the owners publish; returns the second of the first slot."""

    async def all_ready() -> bool:
        return int(await redis.get(READY) or 0) == NUM_OWNERS

    async def all_done() -> bool:
        return all(owner.poll() is not None for owner in owners)

    await until(all_ready, seconds=120)
    seconds, _ = await redis.time()
    beginning = int(seconds) - (NUM_SLOTS - 1) * SLOT_SECONDS
    await redis.set(BEGINNING, beginning)
    await until(all_done, seconds=120)
    assert [owner.returncode for owner in owners] == [0] * NUM_OWNERS
    return beginning


def measured_in(values: Values, *, window: int, now: int, beginning: int) -> Values:
    """What was measured in the window that ends with second `now`."""
    slots = [
        values_of_slot(values, slot)
        for slot in range(NUM_SLOTS)
        if now - window < beginning + slot * SLOT_SECONDS <= now
    ]
    return {name: np.concatenate([slot[name] for slot in slots]) for name in values}


def worst_error(frame: Frame, values: Values, *, beginning: int) -> float:
    """The largest relative error of any percentile of any interval over any window."""
    errors: list[float] = []
    for window, summaries in zip(WINDOWS_SECONDS, frame.windows, strict=True):
        measured = measured_in(values, window=window, now=int(frame.unix_seconds), beginning=beginning)
        for name in INTERVAL_NAMES:
            summary = getattr(summaries, name)
            assert summary.count == len(measured[name])
            for percent in PERCENTILES:
                exact = float(np.quantile(measured[name], percent / 100, method="lower"))
                errors.append(abs(getattr(summary, f"p{percent}") - exact) / exact)
    assert len(errors) == len(WINDOWS_SECONDS) * len(INTERVAL_NAMES) * len(PERCENTILES)
    return max(errors)


async def sum_up(redis: Redis) -> None:
    """Bring all that was published into stretches of ten seconds, which wait to be stored."""
    measured = Measurements(redis, POOL)
    stretches = Stretches(redis, POOL, measured=measured)
    now, _ = await redis.time()
    await measured.read(now=int(now))
    for _ in range(12):
        # Half a minute ahead, so that the last stretches are over.
        await stretches.close_due(now=int(now) + 30)


def worst_error_of_rollups(values: Values, *, seconds: int, beginning: int) -> float:
    """As `worst_error`, of all stretches of one kind together, of which there must be all durations since the first
    stretch."""
    since = int(Rollup.objects.filter(seconds=10).earliest("starts_at").starts_at.timestamp())
    slots = [slot for slot in range(NUM_SLOTS) if beginning + slot * SLOT_SECONDS >= since]
    known = {name: np.concatenate([values_of_slot(values, slot)[name] for slot in slots]) for name in values}
    rows = Rollup.objects.filter(seconds=seconds).order_by("starts_at")
    summaries = summarise_intervals(merge([decode_content(bytes(row.content)) for row in rows]).intervals)
    errors = []
    for name in INTERVAL_NAMES:
        summary = getattr(summaries, name)
        assert summary.count == len(known[name]) > 0.95 * NUM_VALUES
        for percent in PERCENTILES:
            exact = float(np.quantile(known[name], percent / 100, method="lower"))
            errors.append(abs(getattr(summary, f"p{percent}") - exact) / exact)
    return max(errors)


@pytest.mark.heavy
@pytest.mark.django_db(transaction=True)
async def test_percentiles_from_five_processes_are_within_one_percent_over_every_window_and_rollup(
    redis: Redis, valkey: str, owners: list[subprocess.Popen[bytes]]
) -> None:
    beginning = await publish_all(redis, owners)
    await PoolMonitor(redis, POOL, broadcast=Consoles()).publish_frame()
    frame = decode_frame(await redis.get(keys.frame(POOL)))
    worst = {"live": await asyncio.to_thread(lambda: worst_error(frame, known_values(), beginning=beginning))}
    await redis.delete(keys.rolled_up(POOL), keys.chronicle())
    await sum_up(redis)

    def store_and_compare() -> None:
        with BlockingRedis.from_url(valkey) as client:
            drain_chronicle(client)
        values = known_values()
        for seconds in RESOLUTIONS:
            worst[f"{seconds} s"] = worst_error_of_rollups(values, seconds=seconds, beginning=beginning)

    await in_thread(store_and_compare)
    print("worst relative error of a percentile:", {name: f"{error:.4%}" for name, error in worst.items()})
    assert set(worst) == {"live", "10 s", "60 s", "600 s", "3600 s"}
    assert max(worst.values()) <= 0.01 + 1e-9
