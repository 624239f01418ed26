"""A run as JSON, and as one HTML file that needs nothing else: no server, no network."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from serving.lab.reports.page import PAGE, SCRIPT
from serving.lab.reports.plots import plots_of
from serving.lab.summaries import Figures, Percentiles, RunSummary
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.workload import Workload

SCHEMA_VERSION: Final = 1
_PERCENTILES: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_INTERVALS: Final = {
    "queue_ms": "Queue time",
    "ttft_ms": "TTFT",
    "itl_ms": "ITL",
    "tpot_ms": "TPOT",
    "e2e_ms": "E2E",
}
_RATES: Final = {
    "requests_per_second": "Requests/s",
    "goodput_per_second": "Goodput, requests/s",
    "output_tokens_per_second": "Output tokens/s",
    "prompt_tokens_per_second": "Prompt tokens/s",
}
_COUNTS: Final = {
    "num_requests": "requests",
    "num_finished": "finished",
    "num_refused": "refused",
    "num_delayed": "delayed",
    "num_failed": "failed",
    "num_cancelled": "cancelled",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run and what it was played on. `context` is what else a reader must know, name by name."""

    title: str
    workload: Workload
    summary: RunSummary
    context: dict[str, str]


def report_json(report: Report) -> str:
    """`{schema_version, title, workload, context, summary}`; the summary's fields are those of `RunSummary`."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "title": report.title,
        "workload": workload_to_dict(report.workload),
        "context": report.context,
        "summary": msgspec.to_builtins(report.summary),
    }
    return json.dumps(content, indent=1)


def report_html(report: Report, *, chart_library: Path) -> str:
    """One page with figures and charts; `chart_library` is Chart.js's file, which becomes part of it."""
    slo = report.workload.classes[0].slo if len(report.workload.classes) == 1 else None
    plots = plots_of(report.summary, slo=slo)
    data = json.dumps(plots).replace("<", "\\u003c")
    body = "\n".join(_body(report))
    # Within a script a browser reads nothing but the tag's own end.
    library = chart_library.read_text(encoding="utf-8").replace("</script", "<\\/script")
    return PAGE.format(title=html.escape(report.title), body=body, data=data, library=library, script=SCRIPT)


def figures_rows(figures: Figures) -> Iterator[tuple[str, list[str]]]:
    """The percentiles of each interval, in words, as a table shows them."""
    for name, title in _INTERVALS.items():
        found: Percentiles | None = getattr(figures, name)
        cells = ["–"] * len(_PERCENTILES) if found is None else [f"{getattr(found, key):,.1f}" for key in _PERCENTILES]
        yield title, cells


def counts_in_words(figures: Figures) -> str:
    """How many requests ended how."""
    told = [(getattr(figures, name), word) for name, word in _COUNTS.items()]
    return ", ".join(f"{count:,} {word}" for count, word in told if count or word in ("requests", "finished"))


def rates_of(figures: Figures) -> list[tuple[str, str]]:
    """Throughput and goodput, in words."""
    return [(title, f"{getattr(figures, name):,.2f}") for name, title in _RATES.items()]


def _body(report: Report) -> Iterator[str]:
    summary = report.summary
    yield f"<h1>{html.escape(report.title)}</h1>"
    yield f"<p>{html.escape(counts_in_words(summary.total))}.</p>"
    yield _list(report.context.items())
    yield _list(rates_of(summary.total))
    yield from _tables("All requests", summary.total)
    if len(summary.classes) > 1:
        for name, figures in summary.classes.items():
            yield from _tables(f"Class {name}: {counts_in_words(figures)}", figures)
    for what, codes in (("Refused", summary.refused_by_code), ("Failed", summary.failed_by_code)):
        if codes:
            told = ", ".join(f"{code}: {count}" for code, count in codes.items())
            yield f"<p>{what} by code: {html.escape(told)}</p>"
    if summary.first_failure:
        yield f"<p>The first failure: {html.escape(summary.first_failure)}</p>"
    yield "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in summary.notes) + "</ul>"
    yield '<div id="charts"></div>'


def _tables(title: str, figures: Figures) -> Iterator[str]:
    heads = "".join(f"<th>{name}</th>" for name in _PERCENTILES)
    rows = "".join(
        f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for name, cells in figures_rows(figures)
    )
    yield f"<h2>{html.escape(title)}</h2>"
    # What scrolls sideways on a narrow page can be reached by keyboard.
    yield f'<div class="scroll" role="region" aria-label="{html.escape(title)}" tabindex="0">'
    yield f"<table><thead><tr><th>ms</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"


def _list(pairs: Iterable[tuple[str, Any]]) -> str:
    told = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in pairs)
    return f"<dl>{told}</dl>"
