"""What is read of a GPU through NVIDIA's management library: a real shared library stands in for it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.engine.device import DeviceUsage

pytestmark = pytest.mark.heavy

_SOURCE = Path(__file__).parent / "nvml" / "library.c"
_UUID = "de305d54-75b4-431b-adb2-eb6b9e546014"
_READ = """
import dataclasses, json, logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stderr)
from serving.engine.nvml import find_nvml_device
device = find_nvml_device(sys.argv[1])
print(json.dumps([None if device is None else dataclasses.asdict(device.read()), "torch" in sys.modules]))
"""
_NOT_SUPPORTED, _GPU_IS_LOST, _DRIVER_NOT_LOADED = 3, 15, 9

WHOLE = DeviceUsage(
    device_id=f"GPU-{_UUID}",
    ratio=0.83,
    memory_bytes=70 << 30,
    memory_total_bytes=140 << 30,
    power_watts=612.345,
    power_limit_watts=700.0,
    celsius=64,
    clock_mhz=1980,
)
Read = Callable[..., tuple[DeviceUsage | None, str]]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a library of today, one of an old driver, and none."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("today", "old", "none")}
    for name, options in (("today", []), ("old", ["-DOLD"])):
        library = folders[name] / "libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", *options, "-o", library, _SOURCE], check=True, timeout=60)
    return folders


@pytest.fixture(scope="module")
def read(libraries: dict[str, Path]) -> Read:
    """Reads the device in a process of its own, and gives what it told and what the log said."""

    def read_once(library: str = "today", **environment: Any) -> tuple[DeviceUsage | None, str]:
        given = {"UUID": f"GPU-{_UUID}", **{name: str(value) for name, value in environment.items()}}
        done = subprocess.run(
            [sys.executable, "-c", _READ, _UUID],
            env={**os.environ, **given, "LD_LIBRARY_PATH": str(libraries[library])},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        told, has_torch = json.loads(done.stdout)
        assert not has_torch
        if told is not None:
            told = DeviceUsage(**{**told, "slowed_by": tuple(told["slowed_by"])})
        return told, done.stderr.strip()

    return read_once


def test_driver_tells_every_figure_in_its_unit(read: Read) -> None:
    assert read() == (WHOLE, "")


@pytest.mark.parametrize("code", [_NOT_SUPPORTED, _GPU_IS_LOST])
def test_figures_that_cannot_be_read_are_none_and_no_error(read: Read, code: int) -> None:
    assert read(FAILING=code) == (DeviceUsage(device_id=f"GPU-{_UUID}"), "")


@pytest.mark.parametrize(
    ("reasons", "slowed_by"),
    [
        (0x1, ()),  # at rest
        (0x4, ("power",)),
        (0x8 | 0x80, ("power",)),
        (0x20, ("heat",)),
        (0x4 | 0x8 | 0x40, ("power", "heat")),
        (0x8, ("hardware",)),
        (0x2 | 0x10 | 0x100, ()),  # an operator's own settings
    ],
)
def test_tells_why_the_clock_is_low(read: Read, reasons: int, slowed_by: tuple[str, ...]) -> None:
    usage, _ = read(REASONS=reasons)
    assert usage is not None
    assert usage.slowed_by == slowed_by


def test_old_driver_without_reasons_tells_the_rest(read: Read) -> None:
    assert read("old") == (WHOLE, "")


def test_part_of_a_divided_gpu_tells_its_memory_and_its_boards_temperature(read: Read) -> None:
    usage, logged = read(UUID=f"MIG-{_UUID}", REASONS=0x20)
    assert usage == DeviceUsage(
        device_id=f"MIG-{_UUID}",
        memory_bytes=5 << 30,
        memory_total_bytes=20 << 30,
        celsius=64,
        slowed_by=("heat",),
    )
    assert logged == ""


def test_without_the_library_there_is_no_device_and_one_line(read: Read) -> None:
    usage, logged = read("none")
    assert usage is None
    assert logged.startswith("the GPU's power, temperature and utilisation are not told: NVML does not start")
    assert "\n" not in logged


def test_driver_that_does_not_start_is_one_line(read: Read) -> None:
    usage, logged = read(INIT=_DRIVER_NOT_LOADED)
    assert usage is None
    assert logged.startswith("the GPU's power, temperature and utilisation are not told: NVML does not start")


def test_device_that_the_library_does_not_know_is_one_line(read: Read) -> None:
    usage, logged = read(UUID="GPU-another")
    assert usage is None
    assert logged == f"the GPU's power, temperature and utilisation are not told: NVML knows no device {_UUID}"


def test_every_figure_is_covered() -> None:
    """What is added to `DeviceUsage` is to be read above."""
    unread = {field.name for field in dataclasses.fields(WHOLE) if getattr(WHOLE, field.name) in (None, "", ())}
    assert unread == {"slowed_by"}
