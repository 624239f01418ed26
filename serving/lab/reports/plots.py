"""The charts of a run over time, as data: for the console, and for the page that is a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving.lab.summaries import Moment, RunSummary
from serving.lab.workloads.workload import Slo

_SECONDS = {"label": "time", "unit": "s"}


def plots_of(summary: RunSummary, *, slo: Slo | None = None) -> list[dict[str, Any]]:
    """A plot for each thing that is watched over time; those of which nothing is known are left out. `slo` draws its
    bounds."""
    return plots_of_moments(summary.moments, slo=slo, warm_up_seconds=summary.warm_up_seconds)


def plots_of_moments(
    moments: Sequence[Moment], *, slo: Slo | None = None, warm_up_seconds: float = 0.0
) -> list[dict[str, Any]]:
    """The same of some stretches of a run."""
    plots = [
        _plot(
            moments,
            "throughput",
            "Throughput",
            "tokens/s",
            {"output": "output_tokens_per_second", "prompts": "prompt_tokens_per_second"},
        ),
        _plot(
            moments,
            "requests",
            "Requests",
            "a second",
            {
                "arrived": "num_arrived",
                "finished": "num_finished",
                "refused": "num_refused",
                "failed": "num_failed",
                "cancelled": "num_cancelled",
            },
            per_second=True,
        ),
        _plot(
            moments,
            "ttft",
            "TTFT",
            "ms",
            {"p50": "ttft_p50_ms", "p95": "ttft_p95_ms"},
            lines=_bound("SLO", None if slo is None else slo.ttft_ms),
        ),
        _plot(
            moments,
            "itl",
            "ITL",
            "ms",
            {"p50": "itl_p50_ms", "p95": "itl_p95_ms"},
            lines=_bound("SLO (mean of a request)", None if slo is None else slo.itl_ms),
        ),
        _plot(moments, "queue", "Sequences", "", {"running": "num_running", "waiting": "num_waiting"}),
        _plot(
            moments,
            "use",
            "Use",
            "share",
            {"KV memory": "kv_used_ratio", "engine busy": "busy_ratio", "accelerator": "accelerator_ratio"},
        ),
    ]
    for plot in plots:
        if warm_up_seconds:
            plot["lines"] += [
                {"axis": "x", "value": warm_up_seconds, "label": "measured from here", "color": "chart-rest"}
            ]
    return [plot for plot in plots if plot["series"]]


def _plot(
    moments: Sequence[Moment],
    name: str,
    title: str,
    unit: str,
    fields: dict[str, str],
    *,
    per_second: bool = False,
    lines: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    series = []
    for label, field in fields.items():
        points = [
            {"x": moment.at_seconds, "y": round(value / moment.seconds, 4) if per_second else value}
            for moment in moments
            if (value := getattr(moment, field)) is not None
        ]
        if any(point["y"] for point in points):
            series.append({"label": label, "points": points})
    return {
        "id": f"plot-{name}",
        "title": title,
        "x": _SECONDS,
        "y": {"label": title, "unit": unit},
        "series": series,
        "lines": lines or [],
    }


def _bound(label: str, value: float | None) -> list[dict[str, Any]]:
    return [] if value is None else [{"axis": "y", "value": value, "label": label}]
