"""What an engine's heartbeat tells of its accelerator, and that nothing waits for the accelerator."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineBuild, EngineSnapshot, decode_snapshot, encode
from serving.engine.device import DeviceUsage
from serving.engine.plan import StepPlan, StepResult
from serving.worker.gauge import SampledGauge
from serving.worker.heartbeat import Heartbeat
from serving.worker.lifecycle import EngineWorker
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


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def told(completed: EngineSnapshot) -> tuple[float | None, int | None]:
    return completed.accelerator_ratio, completed.accelerator_memory_bytes


def test_reading_is_told_however_often_the_heart_beats_until_it_is_out_of_date() -> None:
    device, clock = Device(), Clock()
    gauge = SampledGauge(device, clock=clock)
    assert told(gauge.complete(snapshot())) == (None, None)
    gauge.sample()
    for _ in range(20):
        clock.now += 0.25
        assert told(gauge.complete(snapshot())) == (0.75, 2**30)
    clock.now += 0.25
    assert told(gauge.complete(snapshot())) == (None, None)
    assert len(device.askers) == 1
    device.usage = DeviceUsage(ratio=0.0, memory_bytes=0)
    gauge.sample()
    assert told(gauge.complete(snapshot())) == (0.0, 0)


def test_every_figure_of_the_device_is_told() -> None:
    usage = DeviceUsage(
        device_id="GPU-1",
        ratio=0.5,
        memory_bytes=70,
        memory_total_bytes=140,
        power_watts=612.5,
        power_limit_watts=700.0,
        celsius=64,
        clock_mhz=1980,
        slowed_by=("power", "heat"),
    )
    gauge = SampledGauge(lambda: usage)
    gauge.sample()
    engine = decode_snapshot(encode(gauge.complete(snapshot())))
    of_device = {name: getattr(engine, name) for name in engine.__struct_fields__ if name.startswith("accelerator_")}
    assert of_device == {
        "accelerator_id": "GPU-1",
        **{
            f"accelerator_{field.name}": getattr(usage, field.name)
            for field in dataclasses.fields(usage)
            if field.name != "device_id"
        },
    }


def test_reading_ages_from_when_the_driver_returned() -> None:
    clock = Clock()

    def read_slowly() -> DeviceUsage:
        clock.now += 4.5
        return BUSY

    gauge = SampledGauge(read_slowly, clock=clock)
    gauge.sample()
    clock.now += 4.5
    assert told(gauge.complete(snapshot())) == (0.75, 2**30)


def test_device_is_read_again_and_again_on_one_thread_until_the_gauge_stops() -> None:
    device = Device()
    gauge = SampledGauge(device, every_seconds=0.001)
    gauge.start()
    wait_until(lambda: len(device.askers) > 3)
    gauge.stop(timeout_seconds=5)
    assert set(device.askers) == {"device-gauge"}
    assert "device-gauge" not in names_of_threads()


def test_all_else_in_the_snapshot_stays() -> None:
    engine = snapshot(num_running=3)
    gauge = SampledGauge(lambda: DeviceUsage())
    gauge.sample()
    assert gauge.complete(engine) == engine


def test_device_that_cannot_be_read_tells_nothing_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    device = Device()
    gauge = SampledGauge(device)
    device.error = RuntimeError("fallen off the bus")
    for _ in range(3):
        gauge.sample()
        assert told(gauge.complete(snapshot())) == (None, None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    device.error = None
    gauge.sample()
    assert told(gauge.complete(snapshot())) == (0.75, 2**30)


@pytest.fixture
def beat_once(valkey: str) -> Callable[[SampledGauge | None], EngineSnapshot]:
    """Runs a heartbeat until its first beat, and gives what it told."""

    def beat(gauge: SampledGauge | None) -> EngineSnapshot:
        with Redis.from_url(valkey) as redis:
            heartbeat = Heartbeat(
                redis,
                engine_id=ENGINE,
                pool=POOL,
                mailbox=Mailbox(),
                snapshot=snapshot,
                owners=frozenset,
                gauge=gauge,
            )
            heartbeat.start()
            try:
                wait_until(lambda: redis.get(keys.heartbeat(ENGINE)) is not None)
                content = redis.get(keys.heartbeat(ENGINE))
            finally:
                heartbeat.stop(timeout_seconds=5)
            assert isinstance(content, bytes)
            return decode_snapshot(content)

    return beat


def test_heartbeat_tells_what_the_device_told_last(
    beat_once: Callable[[SampledGauge | None], EngineSnapshot],
) -> None:
    gauge = SampledGauge(Device())
    gauge.sample()
    assert told(beat_once(gauge)) == (0.75, 2**30)


def test_heartbeat_without_a_device_tells_of_none(
    beat_once: Callable[[SampledGauge | None], EngineSnapshot],
) -> None:
    assert told(beat_once(None)) == (None, None)


def test_heart_beats_on_while_the_driver_does_not_return(
    beat_once: Callable[[SampledGauge | None], EngineSnapshot],
) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang() -> DeviceUsage:
        asked.set()
        released.wait()
        return BUSY

    gauge = SampledGauge(hang)
    gauge.start()
    assert asked.wait(20)
    assert told(beat_once(gauge)) == (None, None)
    assert not released.is_set()
    released.set()
    gauge.stop(timeout_seconds=5)


class IdleRunner:
    """Is never given anything to compute."""

    block_size, num_blocks, max_model_len = 16, 64, 1024
    eos_token_ids = frozenset({0})

    def run(self, plan: StepPlan) -> StepResult:
        raise AssertionError(f"asked to compute {plan}")


def test_engine_tells_what_it_computes_with(valkey: str) -> None:
    build = EngineBuild(processor="A CPU", num_threads=2, footplate_version="1", torch_version="2")
    with Redis.from_url(valkey) as redis:
        worker = EngineWorker(
            IdleRunner(), redis=lambda: redis, pool=POOL, model="tiny", device="cpu", dtype="none", build=build
        )
        assert worker.snapshot().build == build


@pytest.mark.parametrize(("device", "num_threads"), [("cuda", 1), ("cpu", 0)])
def test_engine_has_a_gauge_of_its_accelerator_as_long_as_it_runs_and_none_of_a_cpu(
    valkey: str, device: str, num_threads: int
) -> None:
    with Redis.from_url(valkey) as redis:
        worker = EngineWorker(
            IdleRunner(),
            redis=lambda: Redis.from_url(valkey),
            pool=POOL,
            model="tiny",
            device=device,
            dtype="none",
            gauge=Device(),
        )
        running = threading.Thread(target=worker.run, kwargs={"drain_seconds": 5.0}, daemon=True)
        running.start()
        wait_until(lambda: redis.exists(keys.heartbeat(worker.engine_id)) == 1)
        assert names_of_threads().count("device-gauge") == num_threads
        worker.leave()
        running.join(20)
    assert not running.is_alive()
    assert "device-gauge" not in names_of_threads()
