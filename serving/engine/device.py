"""What a device says of itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """How busy an accelerator is (0 to 1) and how much of its memory is in use, by anyone; None: it does not tell."""

    ratio: float | None = None
    memory_bytes: int | None = None


DeviceGauge = Callable[[], DeviceUsage]
"""Reads the device now; from any thread that nothing waits for: a driver may take seconds."""


def usable_cores() -> int:
    """Cores that this process may use: by its affinity, and by its container's quota where there is one (Linux, cgroup
    version 2). Threads beyond it would only wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="utf-8").split()
        return min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or `max`: no quota
        return cores
