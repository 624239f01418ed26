"""Processor time that processes use, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.e2e.stack import children_of

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def seconds_of(pid: int) -> float:
    """Seconds that a process's threads have used so far; 0 for one that is gone. (proc(5), `stat`)"""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def with_descendants(pid: int) -> list[int]:
    """A process and all that it started, and they, as far as they live."""
    return [pid, *(found for child in children_of(pid) for found in with_descendants(child))]


def used_by(roles: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """Seconds used so far by the processes of each role."""
    return {role: sum(map(seconds_of, pids)) for role, pids in roles.items()}


def us_per_token(before: Mapping[str, float], after: Mapping[str, float], *, num_tokens: float) -> dict[str, float]:
    """Microseconds of a core that each role used a token between two readings, and all together; none of no tokens."""
    if not num_tokens:
        return {}
    used = {role: (after[role] - before[role]) / num_tokens * 1e6 for role in before}
    return {role: round(value, 1) for role, value in {**used, "all": sum(used.values())}.items()}
