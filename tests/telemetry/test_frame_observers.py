"""Who is shown a pool's frames beside the consoles."""

from __future__ import annotations

import asyncio
import logging

import pytest
from redis.asyncio import Redis

from serving.telemetry import pool_monitor
from serving.telemetry.frames import Frame
from serving.telemetry.pool_monitor import PoolMonitor
from tests.telemetry.actions import read_frame
from tests.telemetry.conftest import POOL, Consoles


class Observer:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[Frame] = []

    async def __call__(self, frame: Frame) -> None:
        self.seen.append(frame)


async def fail(_frame: Frame) -> None:
    raise RuntimeError("broken")


async def hang(_frame: Frame) -> None:
    await asyncio.Event().wait()


async def test_each_is_shown_every_frame_once_it_is_written(redis: Redis, consoles: Consoles) -> None:
    first, second = Observer(), Observer()
    monitor = PoolMonitor(redis, POOL, broadcast=consoles, observers=[first, second])
    for _ in range(2):
        await monitor.publish_frame()
    assert [frame.sequence for frame in first.seen] == [1, 2]
    assert second.seen == first.seen
    assert await read_frame(redis) == first.seen[-1]


async def test_one_that_fails_or_hangs_holds_up_neither_the_others_nor_the_frames(
    redis: Redis, consoles: Consoles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_monitor, "_OBSERVER_SECONDS", 0.05)
    last = Observer()
    monitor = PoolMonitor(redis, POOL, broadcast=consoles, observers=[fail, hang, last])
    for _ in range(2):
        await monitor.publish_frame()
    assert [frame.sequence for frame in last.seen] == [1, 2]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 4
