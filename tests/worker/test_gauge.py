"""What an engine's heartbeat tells of its accelerator, and how seldom the accelerator is asked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot, decode_snapshot
from serving.engine.device import DeviceGauge, DeviceUsage
from serving.worker.gauge import SampledGauge
from serving.worker.heartbeat import Heartbeat
from serving.worker.mailbox import Mailbox
from tests.telemetry.conftest import Clock, snapshot

POOL = PoolName("default")
ENGINE = EngineId("engine-1")
BUSY = DeviceUsage(ratio=0.75, memory_bytes=2**30)


class Device:
    """A device that counts how often it is asked, and from which thread."""

    def __init__(self, usage: DeviceUsage = BUSY) -> None:
        self.usage = usage
        self.error: Exception | None = None
        self.askers: list[str] = []

    def __call__(self) -> DeviceUsage:
        self.askers.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return self.usage


def told(completed: EngineSnapshot) -> tuple[float | None, int | None]:
    return completed.accelerator_ratio, completed.accelerator_memory_bytes


def test_device_is_read_once_a_second_however_often_the_heart_beats() -> None:
    device, clock = Device(), Clock()
    gauge = SampledGauge(device, clock=clock)
    for _ in range(4):
        assert told(gauge.complete(snapshot())) == (0.75, 2**30)
        clock.now += 0.25
    assert len(device.askers) == 1
    device.usage = DeviceUsage(ratio=0.0, memory_bytes=0)
    assert told(gauge.complete(snapshot())) == (0.0, 0)
    assert len(device.askers) == 2


def test_all_else_in_the_snapshot_stays() -> None:
    engine = snapshot(num_running=3)
    assert SampledGauge(lambda: DeviceUsage()).complete(engine) == engine


def test_device_that_cannot_be_read_tells_nothing_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    device, clock = Device(), Clock()
    gauge = SampledGauge(device, clock=clock)
    device.error = RuntimeError("fallen off the bus")
    for _ in range(3):
        assert told(gauge.complete(snapshot())) == (None, None)
        clock.now += 1.0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    device.error = None
    assert told(gauge.complete(snapshot())) == (0.75, 2**30)


@pytest.fixture
def beat_once(valkey: str) -> Callable[[DeviceGauge | None], EngineSnapshot]:
    """Runs a heartbeat until its first beat, and gives what it told."""

    def beat(device: DeviceGauge | None) -> EngineSnapshot:
        with Redis.from_url(valkey) as redis:
            heartbeat = Heartbeat(
                redis,
                engine_id=ENGINE,
                pool=POOL,
                mailbox=Mailbox(),
                snapshot=snapshot,
                owners=frozenset,
                gauge=None if device is None else SampledGauge(device),
            )
            heartbeat.start()
            try:
                deadline = time.monotonic() + 20
                while (content := redis.get(keys.heartbeat(ENGINE))) is None:
                    assert time.monotonic() < deadline, "it does not beat"
                    time.sleep(0.01)
            finally:
                heartbeat.stop(timeout_seconds=5)
            assert isinstance(content, bytes)
            return decode_snapshot(content)

    return beat


def test_heartbeat_tells_of_the_device_from_its_own_thread(
    beat_once: Callable[[DeviceGauge | None], EngineSnapshot],
) -> None:
    device = Device()
    assert told(beat_once(device)) == (0.75, 2**30)
    assert set(device.askers) == {"heartbeat"}


def test_heartbeat_without_a_device_tells_of_none(
    beat_once: Callable[[DeviceGauge | None], EngineSnapshot],
) -> None:
    assert told(beat_once(None)) == (None, None)


def test_heart_beats_on_while_the_device_cannot_be_read(
    beat_once: Callable[[DeviceGauge | None], EngineSnapshot],
) -> None:
    device = Device()
    device.error = OSError("no driver")
    assert told(beat_once(device)) == (None, None)
