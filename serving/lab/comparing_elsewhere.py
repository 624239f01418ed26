"""Comparisons in a process of their own: drawing anew takes a second or two, in which nobody else would be served."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

import msgspec
import numpy as np

from serving.contracts.errors import Unavailable
from serving.lab.comparing import Comparison, PlayedRun, RunFigure, compare
from serving.lab.packing import unpack_outcomes
from serving.lab.summaries import RunSummary
from serving.lab.workloads.workload import Slo


class PackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A `PlayedRun` whose requests are still packed: so they are handed on quickly."""

    packed: bytes
    measured_seconds: float
    began_seconds: float
    slos: Mapping[str, Slo]
    figures: tuple[RunFigure, ...] = ()

    def unpacked(self) -> PlayedRun:
        """The run with its requests."""
        return PlayedRun(
            outcomes=unpack_outcomes(self.packed),
            measured_seconds=self.measured_seconds,
            began_seconds=self.began_seconds,
            slos=self.slos,
            figures=self.figures,
        )


def compare_elsewhere(first: Sequence[PackedRun], second: Sequence[PackedRun]) -> Comparison:
    """As `compare`, in a process of its own. Blocking. Raises `Unavailable` where that was ended before it was done."""
    # Not forked: whoever asks has threads, and connections.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(compare_packed, list(first), list(second)).result()
    except BrokenProcessPool:
        raise Unavailable("the comparison's process was ended before it was done; ask again") from None


def compare_packed(first: Sequence[PackedRun], second: Sequence[PackedRun]) -> Comparison:
    """As `compare`, in this process."""
    return compare([each.unpacked() for each in first], [each.unpacked() for each in second])


def run_figures(summary: RunSummary) -> tuple[RunFigure, ...]:
    """What a run told beside its requests. Whether an engine that is busier is better, nobody can say: it is so where
    more comes out of it."""
    found: list[RunFigure] = []
    itl = summary.total.itl_ms
    if itl is not None:
        found += [
            RunFigure(
                name=f"ITL {name}",
                unit="ms",
                better="less",
                value=getattr(itl, name),
                blocks=_blocks(summary, _ITL_MOMENTS.get(name, "")),
            )
            for name in ("mean", "p50", "p90", "p95", "p99")
        ]
    for name, ratio, moment in (
        ("Engine busy", summary.mean_busy_ratio, "busy_ratio"),
        ("Accelerator busy", summary.mean_accelerator_ratio, "accelerator_ratio"),
        ("KV used, peak", summary.peak_kv_used_ratio, ""),
    ):
        if ratio is not None:
            blocks = _blocks(summary, moment)
            found.append(RunFigure(name=name, unit="share", better="neither", value=ratio, blocks=blocks))
    for name, size in (
        ("Host memory, peak", summary.peak_host_memory_bytes),
        ("Device memory, peak", summary.peak_device_memory_bytes),
    ):
        if size is not None:
            found.append(RunFigure(name=name, unit="MiB", better="less", value=size / 2**20))
    if summary.preemptions is not None:
        found.append(RunFigure(name="Preemptions", unit="", better="less", value=summary.preemptions))
    return tuple(found)


_ITL_MOMENTS: Final = {"p50": "itl_p50_ms", "p95": "itl_p95_ms"}
_FEWEST_MOMENTS: Final = 10
_MOST_BLOCKS: Final = 20


def _blocks(summary: RunSummary, name: str) -> tuple[float, ...]:
    """What a figure of the moments was in up to 20 stretches after the warm-up; empty where too few told."""
    if not name:
        return ()
    found = [getattr(moment, name) for moment in summary.moments if moment.at_seconds >= summary.warm_up_seconds]
    known = [float(value) for value in found if value is not None]
    if len(known) < _FEWEST_MOMENTS:
        return ()
    parts = np.array_split(np.array(known), min(_MOST_BLOCKS, len(known)))
    return tuple(float(part.mean()) for part in parts)
