"""What the model runner reads of its device: a GPU's driver stands in here as functions."""

from __future__ import annotations

from typing import NoReturn

import pynvml
import pytest
import torch

from serving.engine.device import DeviceUsage
from serving.engine.model_runner import read_device

GPU = torch.device("cuda", 1)


class Driver:
    """Answers for one device as `torch.cuda` does."""

    def utilization(self, device: torch.device) -> int:
        assert device == GPU
        return 37

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        assert device == GPU
        return 30 * 2**30, 80 * 2**30


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "utilization", driver.utilization)
    monkeypatch.setattr(torch.cuda, "mem_get_info", driver.mem_get_info)
    return driver


@pytest.mark.usefixtures("driver")
def test_gpu_tells_its_utilisation_as_a_ratio_and_the_memory_in_use() -> None:
    assert read_device(GPU) == DeviceUsage(ratio=0.37, memory_bytes=50 * 2**30)


@pytest.mark.usefixtures("driver")
def test_cpu_tells_nothing() -> None:
    assert read_device(torch.device("cpu")) == DeviceUsage(ratio=None, memory_bytes=None)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("no pynvml"),
        RuntimeError("no driver"),
        pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
    ],
)
def test_memory_is_told_where_utilisation_is_not(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(_device: torch.device) -> NoReturn:
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    assert read_device(GPU) == DeviceUsage(ratio=None, memory_bytes=50 * 2**30)


@pytest.mark.usefixtures("driver")
def test_utilisation_is_told_where_memory_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_device: torch.device) -> NoReturn:
        raise RuntimeError("out of order")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    assert read_device(GPU) == DeviceUsage(ratio=0.37, memory_bytes=None)
