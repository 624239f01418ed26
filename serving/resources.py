"""What this process uses of the machine, and what it could have of it, from the kernel's own account."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path


def resident_bytes() -> int:
    """This process's resident memory; 0 where the kernel does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int | None:
    """Memory that this process could still take: the least of what the machine has left and what its own limit and its
    control group's leave; None where the kernel tells of none."""
    accounts = (_left_of_machine(), _left_of_limit(), _left_of_group())
    left = [num_bytes for num_bytes in accounts if num_bytes is not None]
    return max(0, min(left)) if left else None


def _left_of_machine() -> int | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _left_of_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return None
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _left_of_group() -> int | None:
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no limit says `max`
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    return None
