"""What came of runs and experiments, in a line each. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.lab.experiments.overload_results import Verdict
from serving.lab.summaries import Figures

_MOST_NAMED = 3


class RunWords(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a line, and what it `lacks` of what is to be looked at together."""

    says: str
    lacks: tuple[str, ...]


def run_in_words(total: Figures, *, host_bytes: int | None, device_bytes: int | None) -> RunWords:
    """Throughput, queue times, percentiles and memory of a run, side by side."""
    intervals = {
        "queue time": total.queue_ms,
        "TTFT": total.ttft_ms,
        "ITL": total.itl_ms,
        "E2E": total.e2e_ms if total.ttft_ms is None else None,
    }
    memory = host_bytes if device_bytes is None else device_bytes
    has_percentiles = total.ttft_ms is not None or total.e2e_ms is not None
    present = {
        "output": total.num_finished > 0,
        "queue times": total.queue_ms is not None,
        "percentiles": has_percentiles,
        "memory": memory is not None,
    }
    parts = [f"{total.output_tokens_per_second:,.1f} output tokens/s"]
    parts += [f"{name} p95 {found.p95:,.0f} ms" for name, found in intervals.items() if found is not None]
    if memory is not None:
        parts.append(f"peak memory {memory / 2**20:,.0f} MiB")
    if total.num_refused or total.num_failed:
        parts.append(f"{total.num_refused:,} refused, {total.num_failed:,} failed")
    return RunWords(says=", ".join(parts), lacks=tuple(name for name, there in present.items() if not there))


def sweep_in_words(says: str, changes: Mapping[str, Sequence[Any]] | None) -> tuple[str, str]:
    """How a sweep ended, and what it proposes."""
    told = says[:1].upper() + says[1:]
    if not changes:
        return f"{told}; it proposes no change", ""
    proposed = ", ".join(f"{name} {before} → {after}" for name, (before, after) in changes.items())
    return f"{told}; it proposes {proposed}", ""


def overload_in_words(verdicts: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """By how many of its criteria an overload test passed, and which it failed."""
    found = msgspec.convert(verdicts, type=tuple[Verdict, ...])
    judged = [each for each in found if each.judged != "not judged"]
    failed = [each for each in judged if each.judged == "failed"]
    if not failed:
        return f"Passed all {len(judged)} criteria that could be judged", ""
    named = "; ".join(each.title for each in failed[:_MOST_NAMED]) + ("; …" if len(failed) > _MOST_NAMED else "")
    return f"Failed {len(failed)} of {len(judged)} criteria", f"Criteria that were not met: {named}."


def three_ways_in_words(conclusions: Sequence[str]) -> tuple[str, str]:
    """What the ways of batching cost."""
    return (conclusions[0] if conclusions else "The three ways were compared"), ""
