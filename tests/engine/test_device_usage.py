"""What is read of a CUDA device: the driver's library stands in here as a value, and CUDA as functions."""

from __future__ import annotations

import dataclasses
import logging
import platform
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from serving.engine import cuda_device, device
from serving.engine.cuda_device import exclusive, gauge_of, memory_of
from serving.engine.device import DeviceUsage, processor_name

GPU = torch.device("cuda", 1)
UUID = "de305d54-75b4-431b-adb2-eb6b9e546014"
TOLD = DeviceUsage(device_id=f"GPU-{UUID}", ratio=0.37, memory_bytes=51 * 2**30, memory_total_bytes=80 * 2**30)


class Driver:
    """Knows one device, and counts how often it was looked for."""

    def __init__(self) -> None:
        self.usage: DeviceUsage | None = TOLD
        self.num_found = 0

    def find(self, uuid: str) -> SimpleNamespace | None:
        assert uuid == UUID
        self.num_found += 1
        return None if self.usage is None else SimpleNamespace(read=lambda: self.usage)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    def properties_of(device: torch.device) -> SimpleNamespace:
        assert device == GPU
        return SimpleNamespace(uuid=UUID, name="Test GPU")

    driver = Driver()
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties_of)
    monkeypatch.setattr(cuda_device, "find_nvml_device", driver.find)
    return driver


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA tells of 30 GiB free of 80."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * 2**30, 80 * 2**30))


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA tells nothing of memory."""

    def refuse(_device: torch.device) -> NoReturn:
        raise RuntimeError("out of order")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)


@pytest.mark.usefixtures("no_memory")
def test_what_the_driver_tells_is_told_and_cuda_not_asked(driver: Driver) -> None:
    gauge = gauge_of(GPU)
    assert [gauge(), gauge()] == [TOLD, TOLD]
    driver.usage = dataclasses.replace(TOLD, ratio=0.5)
    assert gauge().ratio == 0.5
    assert driver.num_found == 1


@pytest.mark.usefixtures("memory")
def test_cuda_tells_the_memory_where_the_driver_does_not(driver: Driver) -> None:
    driver.usage = DeviceUsage(device_id="GPU-1", celsius=50)
    told = DeviceUsage(device_id="GPU-1", celsius=50, memory_bytes=50 * 2**30, memory_total_bytes=80 * 2**30)
    assert gauge_of(GPU)() == told


@pytest.mark.usefixtures("memory")
def test_without_the_drivers_library_memory_is_told_alone(driver: Driver) -> None:
    driver.usage = None
    gauge = gauge_of(GPU)
    for _ in range(2):
        assert gauge() == DeviceUsage(memory_bytes=50 * 2**30, memory_total_bytes=80 * 2**30)
    assert driver.num_found == 1


@pytest.mark.usefixtures("no_memory")
def test_device_that_nobody_knows_anything_of_tells_nothing(driver: Driver) -> None:
    driver.usage = None
    assert gauge_of(GPU)() == DeviceUsage()


@pytest.mark.usefixtures("driver", "memory")
def test_memory_is_what_allocator_and_driver_account_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("memory_reserved", 7), ("memory_allocated", 5), ("max_memory_allocated", 6)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value if device == GPU else None)
    memory = memory_of(GPU)
    assert memory is not None
    assert memory.name == "Test GPU (cuda:1)"
    assert (memory.total_bytes, memory.used_bytes()) == (80 * 2**30, 50 * 2**30)
    assert (memory.kept_bytes(), memory.held_bytes(), memory.peak_bytes()) == (7, 5, 6)
    assert memory_of(torch.device("cpu")) is None


@pytest.mark.usefixtures("driver", "no_memory")
def test_who_waits_for_its_turn_has_not_asked_the_device_for_its_memory() -> None:
    """It would have made the driver take some for it."""
    assert memory_of(GPU) is not None


def test_one_process_at_a_time_takes_its_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lock"
    entered = threading.Event()

    def wait_for_turn() -> None:
        with exclusive(path):  # a file that is opened anew is locked by itself, within one process too
            entered.set()

    other = threading.Thread(target=wait_for_turn, daemon=True)
    with caplog.at_level(logging.INFO), exclusive(path):
        other.start()
        deadline = time.monotonic() + 20
        while "waiting until another engine has taken its memory" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert not entered.is_set()
    assert entered.wait(20)
    other.join(20)
    with exclusive(path):  # whoever has gone holds it no more
        pass


def test_nobody_waits_for_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with exclusive(tmp_path / "nowhere" / "lock"):
        pass
    assert "may take each other's memory for their own" in caplog.text


@pytest.mark.usefixtures("driver", "memory")
def test_cpu_tells_nothing(driver: Driver) -> None:
    assert gauge_of(torch.device("cpu"))() == DeviceUsage()
    assert driver.num_found == 0


def test_the_processor_is_called_as_the_kernel_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nmodel name\t: A  CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Another\n")
    monkeypatch.setattr(device, "_PROCESSORS", told)
    assert processor_name() == "A CPU @ 2 GHz"


@pytest.mark.parametrize("content", [None, "", "model name\t: \n"])
def test_a_processor_without_a_name_is_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    told = tmp_path / "cpuinfo"
    if content is not None:
        told.write_text(content)
    monkeypatch.setattr(device, "_PROCESSORS", told)
    assert processor_name() == platform.machine()
