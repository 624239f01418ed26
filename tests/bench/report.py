"""From measurements to medians, ratios and a table."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.contenders import OURS
from tests.bench.rounds import Findings, Measurement

RATE, LATENCY = "higher is better", "lower is better"


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One figure that is compared: where it stands in the figures, and its name in the table."""

    path: tuple[str, ...]
    name: str
    sense: str

    def of(self, figures: Mapping[str, Any]) -> float | None:
        """Its value, or none where these figures lack it."""
        value: Any = figures
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value is None else float(value)


def _ms(interval: str, *percentiles: str, label: str = "") -> list[Metric]:
    name = label or interval.split("_")[0].upper()
    return [Metric((interval, each), f"{name} {each} ms", LATENCY) for each in percentiles]


_THROUGHPUT = Metric(("output_tokens_per_second",), "output tokens/s", RATE)
METRICS: Mapping[tuple[str, str], Sequence[Metric]] = {
    ("w1", "engine"): [_THROUGHPUT],
    ("w2", "engine"): [_THROUGHPUT, *_ms("ttft_ms", "p50")],
    ("w2", "http"): [_THROUGHPUT, *_ms("ttft_ms", "p50"), *_ms("itl_ms", "p50")],
    ("w3", "http"): [_THROUGHPUT, *_ms("ttft_ms", "p50", "p95"), *_ms("itl_ms", "p50", "p99")],
    ("w4", "http"): [_THROUGHPUT, *_ms("ttft_ms", "p50", "p95"), *_ms("itl_ms", "p50", "p99")],
    ("w5", "http"): [
        _THROUGHPUT,
        *_ms("quiet_itl_ms", "p50", label="quiet ITL"),
        *_ms("itl_ms", "p50", "p99", "max", label="mixed ITL"),
        *_ms("long_ttft_ms", "p50", label="long prompt's TTFT"),
    ],
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric of one workload: medians by contender, and ours over each peer's, with the least and the greatest
    ratio within one round."""

    workload: str
    form: str
    metric: str
    sense: str
    medians: dict[str, float]
    ratios: dict[str, dict[str, dict[str, float]]]


def compare(measurements: Sequence[Measurement]) -> list[Comparison]:
    """All metrics that were measured, in the order of the workloads."""
    found = []
    for (workload, form), metrics in METRICS.items():
        own = [each for each in measurements if (each.workload, each.form) == (workload, form)]
        for metric in metrics:
            values = _by_round(own, metric)
            if values:
                medians = {name: round(statistics.median(rounds.values()), 2) for name, rounds in values.items()}
                found.append(
                    Comparison(
                        workload=workload,
                        form=form,
                        metric=metric.name,
                        sense=metric.sense,
                        medians=medians,
                        ratios=_ratios(values),
                    )
                )
    return found


def as_json(findings: Findings, **about: Any) -> dict[str, Any]:
    """Everything that a run found, for a file."""
    return {
        **about,
        "missing": findings.missing,
        "problems": findings.problems,
        "idle_core_ratio": findings.idle_core_ratio,
        "comparisons": [dataclasses.asdict(each) for each in compare(findings.measurements)],
        "measurements": [dataclasses.asdict(each) for each in findings.measurements],
    }


def table(findings: Findings) -> str:
    """What a person reads: a column a peer, a row for each of ours with its ratios to the peers, the range of the
    rounds in brackets. Who is missing is named."""
    lines: list[str] = []
    heading: tuple[str, str] | None = None
    for each in compare(findings.measurements):
        if (each.workload, each.form) != heading:
            heading = each.workload, each.form
            num_rounds = _num_rounds(findings.measurements, *heading)
            lines += ["", f"{each.workload.upper()} ({each.form}), medians of {num_rounds}"]
        lines += _metric_lines(each)
    lines += _core_lines(findings.measurements)
    lines += [f"idle: {name} uses {ratio:.1%} of a core" for name, ratio in findings.idle_core_ratio.items()]
    lines += [f"missing: {name} (no {', no '.join(needs)})" for name, needs in findings.missing.items()]
    lines += [f"not measured: {name}: {problem}" for name, problem in findings.problems.items()]
    return "\n".join(lines).strip("\n")


def _metric_lines(each: Comparison) -> list[str]:
    peers = [name for name in each.medians if not _is_ours(name)]
    rows: list[tuple[str, str, list[str]]] = [
        (f"{each.metric}, {each.sense}", "", peers),
        ("", "", [f"{each.medians[peer]:.1f}" for peer in peers]),
    ]
    for name in filter(_is_ours, each.medians):
        cells = [_ratio_text(each.ratios[name][peer]) for peer in peers]
        rows.append((f"  {name}", f"{each.medians[name]:.1f}", cells))
    return [
        f"{label:<44}{median:>9}{''.join(f'{cell:>27}' for cell in cells)}".rstrip() for label, median, cells in rows
    ]


def _is_ours(name: str) -> bool:
    return name.startswith(OURS)


def _by_round(measurements: Sequence[Measurement], metric: Metric) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = {}
    for each in measurements:
        value = metric.of(each.figures)
        if value is not None:
            values.setdefault(each.contender, {})[each.round] = value
    return values


def _ratios(values: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, dict[str, float]]]:
    return {
        own: {peer: _ratio(values[own], values[peer]) for peer in values if not _is_ours(peer)}
        for own in values
        if _is_ours(own)
    }


def _ratio(ours: Mapping[int, float], peers: Mapping[int, float]) -> dict[str, float]:
    """The ratio of the medians; least and greatest of the rounds in which both have a value."""
    each = [ours[number] / peers[number] for number in ours if peers.get(number)]
    middle = statistics.median(peers.values())
    whole = statistics.median(ours.values()) / middle if middle else 0.0
    return {
        "ratio": round(whole, 3),
        "least": round(min(each, default=whole), 3),
        "most": round(max(each, default=whole), 3),
    }


def _ratio_text(ratio: Mapping[str, float]) -> str:
    return f"× {ratio['ratio']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})"


def _num_rounds(measurements: Sequence[Measurement], workload: str, form: str) -> int:
    return 1 + max(each.round for each in measurements if (each.workload, each.form) == (workload, form))


def _core_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Median microseconds of a core a token, by role, where more than the engine's process was measured."""
    grouped: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for each in measurements:
        used = each.figures.get("core_us_per_token")
        if used:
            grouped.setdefault((each.workload, each.contender), []).append(used)
    lines = [""] if grouped else []
    for (workload, name), rounds in grouped.items():
        parts = ", ".join(f"{role} {statistics.median(each[role] for each in rounds):.0f}" for role in rounds[0])
        lines.append(f"µs of core a token, {workload.upper()}, {name}: {parts}")
    return lines
