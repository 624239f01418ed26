"""What `manage.py loadtest` says of its runs. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from serving.lab.comparing import LEVEL, Figure, Interval, PlayedRun, figures_of
from serving.lab.comparing_elsewhere import run_figures
from serving.lab.reports.report import Report, counts_in_words, figures_rows, rates_of, report_json
from serving.lab.summaries import Outcome


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its report, its requests, and under which number it was kept (None: it was not)."""

    report: Report
    outcomes: Sequence[Outcome]
    run_id: int | None = None


def results_json(results: Sequence[Result]) -> str:
    """One line. Of one run it is its report; of several `{schema_version, title, level, figures, runs}`, in which
    `figures` are those of all runs together, each `{name, unit, value, low, high, not_judged}`, and `runs` reports. A
    run that was kept has its number as `run`."""
    if len(results) == 1:
        return json.dumps(_one(results[0]))
    content = {
        "schema_version": 1,
        "title": results[0].report.title,
        "level": LEVEL,
        "figures": [_figure(figure, interval) for figure, interval in figures_together(results)],
        "runs": [_one(result) for result in results],
    }
    return json.dumps(content)


def results_table(results: Sequence[Result]) -> str:
    """For people: each run, and of several all figures together."""
    if len(results) == 1:
        return "\n".join(_run_lines(results[0]))
    lines = [line for result in results for line in (*_run_lines(result), "")]
    total = sum(result.report.summary.total.num_requests for result in results)
    lines.append(f"{len(results)} runs together, {total:,} requests, with 95 % confidence intervals:")
    lines += [_together_line(figure, interval) for figure, interval in figures_together(results)]
    return "\n".join(lines)


def figures_together(results: Sequence[Result]) -> Iterator[tuple[Figure, Interval | None]]:
    """Figures of all runs together."""
    return figures_of(
        [
            PlayedRun(
                outcomes=result.outcomes,
                measured_seconds=result.report.summary.measured_seconds,
                began_seconds=result.report.summary.warm_up_seconds,
                slos={each.name: each.slo for each in result.report.workload.classes},
                figures=run_figures(result.report.summary),
            )
            for result in results
        ]
    )


def _one(result: Result) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(report_json(result.report))
    return content if result.run_id is None else {**content, "run": result.run_id}


def _figure(figure: Figure, interval: Interval | None) -> dict[str, Any]:
    return {
        "name": figure.name,
        "unit": figure.unit,
        "value": round(figure.value, 4),
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "not_judged": figure.not_judged,
    }


def _together_line(figure: Figure, interval: Interval | None) -> str:
    words = figure.not_judged or "-"
    if interval is not None:
        words = f"{interval.low:>12,.3f} to {interval.high:,.3f}"
    return f"{figure.name:>20}  {figure.value:>12,.3f} {figure.unit:<10}  {words}"


def _run_lines(result: Result) -> Iterator[str]:
    report = result.report
    summary = report.summary
    total = summary.total
    kept = "" if result.run_id is None else f" (kept as run {result.run_id})"
    yield f"{report.title}{kept}: {counts_in_words(total)}, measured over {summary.measured_seconds:.1f} s"
    yield ", ".join(f"{name} {value}" for name, value in rates_of(total))
    if total.slo_met_ratio is not None:
        yield f"within the SLO: {total.slo_met_ratio:.1%}"
    yield f"{'ms':>12}  " + "  ".join(f"{name:>10}" for name in ("mean", "p50", "p90", "p95", "p99", "max"))
    for name, cells in figures_rows(total):
        yield f"{name:>12}  " + "  ".join(f"{cell:>10}" for cell in cells)
    told = [f"{each.name} {_size(each.value, each.unit)}" for each in run_figures(summary) if each.unit != "ms"]
    if told:
        yield ", ".join(told)
    for what, codes in (("refused", summary.refused_by_code), ("failed", summary.failed_by_code)):
        for code, count in codes.items():
            yield f"{what}: {count} x {code}"
    if summary.first_failure:
        yield f"first failure: {summary.first_failure}"
    for note in summary.notes:
        yield f"note: {note}"


def _size(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "share" else f"{value:,.0f} {unit}".rstrip()
