"""What a device says of itself."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Literal

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_PROCESSORS = Path("/proc/cpuinfo")


SlowedBy = Literal["power", "heat", "hardware"]
"""Why an accelerator's clock is lower than it could be: its bound of power, its temperature, or it does not say why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """What an accelerator tells of itself; None: it does not tell.

    `device_id` tells one from another (`""`: unknown). `ratio` is how busy it is (0 to 1), `memory_bytes` what is in
    use of its `memory_total_bytes`, by anyone. `power_watts` is what it draws now, of `power_limit_watts` at most, and
    `celsius` its temperature. `clock_mhz` is the clock that it computes with, and `slowed_by` why it is no higher.
    """

    device_id: str = ""
    ratio: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    celsius: float | None = None
    clock_mhz: float | None = None
    slowed_by: tuple[SlowedBy, ...] = ()


DeviceGauge = Callable[[], DeviceUsage]
"""Reads the device now; from any thread that nothing waits for: a driver may take seconds."""


def processor_name() -> str:
    """The processor as the kernel names it (Linux), or else its architecture."""
    with contextlib.suppress(OSError):
        for line in _PROCESSORS.read_text(encoding="utf-8").splitlines():
            field, _, name = line.partition(":")
            if field.strip() == "model name" and name.strip():
                return " ".join(name.split())
    return platform.machine()


def usable_cores() -> int:
    """Cores that this process may use: by its affinity, and by its container's quota where there is one (Linux, cgroup
    version 2). Threads beyond it would only wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="utf-8").split()
        return min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or `max`: no quota
        return cores
