"""Where a decode step's time on a device goes, by the names of the kernels that a profiler saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("attend", "attention", "_merge", "flash", "fmha"),
    "norms": ("_norm_rows", "rms_norm"),
    "rotation": ("_rotate_and_store", "_store"),
    "gates": ("_gate_rows",),
    "products": ("_multiply_tile", "_add_splits", "_make_whole", "gemm", "gemv", "nvjet", "cutlass", "xmma", "splitk"),
}
"""Parts of a step and what its kernels' names contain, in lower case; the first part that fits counts."""
COPIES, OTHER = "copies", "sampling and the rest"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceWork:
    """A kernel or copy: from `start` to `end`, in microseconds."""

    name: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class Breakdown:
    """Microseconds a step, by part; `busy` is when anything ran at all, `idle` the gaps between first and last."""

    parts: dict[str, float]
    busy: float
    idle: float


def part_of(name: str) -> str:
    """Which part of a step a kernel of this name computes."""
    lower = name.lower()
    if lower.startswith(("memcpy", "memset")):
        return COPIES
    for part, words in PARTS.items():
        if any(word in lower for word in words):
            return part
    return OTHER


def break_down(work: Sequence[DeviceWork], *, num_steps: int) -> Breakdown:
    """`work` of `num_steps` steps. Raises `ValueError` for none: the profiler saw nothing of the device."""
    if not work:
        raise ValueError("the profiler saw no work of the device")
    parts = dict.fromkeys((*PARTS, COPIES, OTHER), 0.0)
    for each in work:
        parts[part_of(each.name)] += each.end - each.start
    busy = _covered(work)
    idle = max(each.end for each in work) - min(each.start for each in work) - busy
    return Breakdown(
        {name: round(total / num_steps, 2) for name, total in parts.items()},
        round(busy / num_steps, 2),
        round(idle / num_steps, 2),
    )


def _covered(work: Iterable[DeviceWork]) -> float:
    """How long at least one of `work` ran."""
    covered, until = 0.0, 0.0
    for each in sorted(work, key=lambda each: each.start):
        covered += max(0.0, each.end - max(each.start, until))
        until = max(until, each.end)
    return covered


class Watch:
    """Owns what a profiler saw of a device during the last steps; on the thread that measures."""

    def __init__(self) -> None:
        self.work: list[DeviceWork] = []

    def __call__(self, make_steps: Callable[[], object]) -> None:
        """Make the steps, watched."""
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            make_steps()
            torch.cuda.synchronize()
        self.work = [
            DeviceWork(event.name, event.time_range.start, event.time_range.end)
            for event in profiler.events() or ()
            if event.device_type == DeviceType.CUDA
        ]
