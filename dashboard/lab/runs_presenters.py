"""Runs as pages show them. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import msgspec

from serving.lab.reports.plots import plots_of, plots_of_moments
from serving.lab.reports.report import counts_in_words, figures_rows, rates_of
from serving.lab.runs.selectors import RunView
from serving.lab.summaries import Figures, Moment, RunSummary
from serving.lab.workloads.codec import decode_workload
from serving.lab.workloads.words import arrivals_in_words, slo_in_words
from serving.lab.workloads.workload import Slo, Workload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A line of the list. Figures are empty until there are some; only with them a run can be compared."""

    id: int
    title: str
    workload: str
    where: str
    state: str
    part_of: str
    author: str
    created_at: datetime.datetime
    can_compare: bool
    throughput: str = ""
    ttft: str = ""
    itl: str = ""
    slo_met: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FiguresTable:
    """The figures of all requests, or of one class: counts and rates in words, percentiles in rows."""

    title: str
    counts: str
    slo: str
    rates: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, list[str]], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunPanel:
    """One run. `plots` is what its charts are drawn from; `facts` are what it was played on."""

    id: int
    title: str
    workload: str
    workload_words: str
    state: str
    is_over: bool
    is_stop_asked: bool
    error: str
    author: str
    created_at: datetime.datetime
    facts: tuple[tuple[str, str], ...]
    tables: tuple[FiguresTable, ...]
    notes: tuple[str, ...]
    refused: tuple[tuple[str, int], ...]
    failed: tuple[tuple[str, int], ...]
    first_failure: str
    plots: list[dict[str, Any]]
    has_files: bool


def present_row(run: RunView) -> RunRow:
    """A run in one line."""
    total = None if run.summary is None else run.summary.total
    return RunRow(
        id=run.id,
        title=run.title,
        workload=str(run.workload.get("name", "")),
        where=run.pool or str(run.target.get("url", "")),
        state=run.state,
        part_of=run.experiment,
        author=run.author,
        created_at=run.created_at,
        can_compare=run.is_over and total is not None and run.has_outcomes,
        throughput="" if total is None else f"{total.output_tokens_per_second:,.1f}",
        ttft="" if total is None or total.ttft_ms is None else f"{total.ttft_ms.p95:,.0f}",
        itl="" if total is None or total.itl_ms is None else f"{total.itl_ms.p95:,.1f}",
        slo_met="" if total is None or total.slo_met_ratio is None else f"{total.slo_met_ratio:.1%}",
    )


def present_run(run: RunView) -> RunPanel:
    """A run with all that is known of it."""
    workload = decode_workload(run.workload)
    summary = run.summary
    return RunPanel(
        id=run.id,
        title=run.title,
        workload=workload.name,
        workload_words=arrivals_in_words(workload.arrivals),
        state=run.state,
        is_over=run.is_over,
        is_stop_asked=run.is_stop_asked,
        error=run.error,
        author=run.author,
        created_at=run.created_at,
        facts=_facts(run),
        tables=() if summary is None else tuple(_tables(summary, workload)),
        notes=() if summary is None else summary.notes,
        refused=() if summary is None else tuple(summary.refused_by_code.items()),
        failed=() if summary is None else tuple(summary.failed_by_code.items()),
        first_failure="" if summary is None else summary.first_failure,
        plots=[] if summary is None else plots_of(summary, slo=_only_slo(workload)),
        has_files=summary is not None,
    )


def present_state(run: RunView) -> dict[str, Any]:
    """How far a run is."""
    progress = run.progress
    moments = msgspec.convert(progress.get("moments", []), type=tuple[Moment, ...])
    figures = progress.get("total")
    total = None if figures is None else msgspec.convert(figures, type=Figures)
    return {
        "state": run.state,
        "is_over": run.is_over,
        "is_stop_asked": run.is_stop_asked,
        "share": progress.get("share"),
        "seconds": progress.get("seconds", 0),
        "num_due": progress.get("num_due", 0),
        "num_in_flight": progress.get("num_in_flight", 0),
        "num_ended": progress.get("num_ended", 0),
        "throughput": None if total is None else total.output_tokens_per_second,
        "ttft_p95_ms": None if total is None or total.ttft_ms is None else total.ttft_ms.p95,
        "itl_p95_ms": None if total is None or total.itl_ms is None else total.itl_ms.p95,
        "num_refused": 0 if total is None else total.num_refused,
        "num_failed": 0 if total is None else total.num_failed,
        "plots": plots_of_moments(moments, slo=_only_slo(decode_workload(run.workload))),
    }


def _tables(summary: RunSummary, workload: Workload) -> list[FiguresTable]:
    slos = {each.name: each.slo for each in workload.classes}
    tables = [_table("All requests", summary.total, None)]
    if len(summary.classes) > 1:
        tables += [_table(f"Class {name}", each, slos.get(name)) for name, each in summary.classes.items()]
    else:
        tables = [_table("All requests", summary.total, _only_slo(workload))]
    return tables


def _table(title: str, figures: Figures, slo: Slo | None) -> FiguresTable:
    met = "" if figures.slo_met_ratio is None else f"{figures.slo_met_ratio:.1%} within the SLO"
    asked = "" if slo is None else slo_in_words(slo)
    return FiguresTable(
        title=title,
        counts=counts_in_words(figures),
        slo=f"{met} ({asked})" if met and asked else met,
        rates=tuple(rates_of(figures)),
        rows=tuple(figures_rows(figures)),
    )


def _only_slo(workload: Workload) -> Slo | None:
    return workload.classes[0].slo if len(workload.classes) == 1 else None


def _facts(run: RunView) -> tuple[tuple[str, str], ...]:
    facts = [("Server", str(run.target.get("url", ""))), ("Model", str(run.target.get("model", "")))]
    if run.pool:
        facts.insert(0, ("Pool", run.pool))
    if run.tunables_version is not None:
        facts.append(("Tunables", f"version {run.tunables_version}"))
    if run.started_at is not None and run.ended_at is not None:
        facts.append(("Took", f"{(run.ended_at - run.started_at).total_seconds():,.0f} s"))
    if run.summary is not None:
        facts += _memory_facts(run.summary)
    return tuple(facts)


def _memory_facts(summary: RunSummary) -> list[tuple[str, str]]:
    facts = []
    if summary.mean_busy_ratio is not None:
        facts.append(("Engine busy", f"{summary.mean_busy_ratio:.0%}"))
    if summary.mean_accelerator_ratio is not None:
        facts.append(("Accelerator", f"{summary.mean_accelerator_ratio:.0%}"))
    if summary.peak_host_memory_bytes is not None:
        facts.append(("Peak memory, host", f"{summary.peak_host_memory_bytes / 2**20:,.0f} MiB"))
    if summary.peak_device_memory_bytes is not None:
        facts.append(("Peak memory, device", f"{summary.peak_device_memory_bytes / 2**20:,.0f} MiB"))
    if summary.preemptions is not None:
        facts.append(("Preemptions", f"{summary.preemptions:,}"))
    return facts
