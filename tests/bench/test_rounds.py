"""Turns, medians and ratios, with entrants that say what they were told to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.offline import ContenderFailed
from tests.bench.report import METRICS, as_json, compare, table
from tests.bench.rounds import Entrant, Findings, Measurement, take_turns


class Scripted:
    """An entrant's figures by round; notes when it was asked."""

    def __init__(self, name: str, rates: list[float], asked: list[str], *, fails_in: int = -1) -> None:
        self._name, self._rates, self._asked, self._fails_in = name, rates, asked, fails_in

    def entrant(self, *workloads: str) -> Entrant:
        return Entrant(name=self._name, form="engine", workloads=workloads, measure=self._measure)

    def _measure(self, workload: str, number: int) -> Mapping[str, Any]:
        self._asked.append(f"{self._name} {workload} {number}")
        if number == self._fails_in:
            raise ContenderFailed("it broke")
        return {"output_tokens_per_second": self._rates[number], "ttft_ms": {"p50": 10 * self._rates[number]}}


def test_all_take_turns_within_each_round() -> None:
    asked: list[str] = []
    entrants = [Scripted("footplate", [1, 1], asked).entrant("w1", "w2"), Scripted("vllm", [1, 1], asked).entrant("w1")]
    take_turns(["w1", "w2"], entrants, Findings(), repeats=2, say=lambda _: None)
    assert asked == [
        "footplate w1 0",
        "vllm w1 0",
        "footplate w1 1",
        "vllm w1 1",
        "footplate w2 0",
        "footplate w2 1",
    ]


def test_who_fails_is_left_out_with_the_reason_and_what_was_measured_stays() -> None:
    asked: list[str] = []
    entrants = [
        Scripted("footplate", [1, 1, 1], asked).entrant("w1"),
        Scripted("vllm", [2, 2, 2], asked, fails_in=1).entrant("w1"),
    ]
    findings = Findings()
    take_turns(["w1"], entrants, findings, repeats=3, say=lambda _: None)
    assert "vllm w1 2" not in asked
    assert findings.problems == {"vllm (engine)": "it broke"}
    assert [(each.contender, each.round) for each in findings.measurements] == [
        ("footplate", 0),
        ("vllm", 0),
        ("footplate", 1),
        ("footplate", 2),
    ]


def test_ratio_is_that_of_the_medians_with_the_range_of_the_rounds() -> None:
    entrants = [Scripted("footplate", [30, 10, 20], []).entrant("w1"), Scripted("vllm", [10, 10, 5], []).entrant("w1")]
    findings = Findings()
    take_turns(["w1"], entrants, findings, repeats=3, say=lambda _: None)
    comparison = compare(findings.measurements)[0]
    assert (comparison.workload, comparison.form, comparison.metric) == ("w1", "engine", "output tokens/s")
    assert comparison.medians == {"footplate": 20, "vllm": 10}
    assert comparison.ratios == {"footplate": {"vllm": {"ratio": 2.0, "least": 1.0, "most": 4.0}}}


def test_mixed_load_compares_each_of_our_presets() -> None:
    figures = {"output_tokens_per_second": 50.0, "itl_ms": {"p50": 1.0, "p99": 4.0, "max": 5.0}}
    measurements = [
        Measurement(workload="w5", form="http", contender=name, round=0, figures=figures)
        for name in ("footplate, preset chat", "footplate, preset bulk", "vllm")
    ]
    comparison = next(each for each in compare(measurements) if each.metric == "mixed ITL p99 ms")
    assert set(comparison.ratios) == {"footplate, preset chat", "footplate, preset bulk"}
    assert comparison.ratios["footplate, preset bulk"]["vllm"]["ratio"] == 1


def test_table_names_every_median_ratio_and_idle_server() -> None:
    entrants = [Scripted("footplate", [30], []).entrant("w2"), Scripted("vllm", [10], []).entrant("w2")]
    findings = Findings(idle_core_ratio={"vllm": 0.015})
    take_turns(["w2"], entrants, findings, repeats=1, say=lambda _: None)
    told = [line.split() for line in table(findings).splitlines()]
    assert told[0] == ["W2", "(engine),", "medians", "of", "1"]
    assert told[1] == ["output", "tokens/s,", "higher", "is", "better", "vllm"]
    assert told[2] == ["10.0"]
    assert told[3] == ["footplate", "30.0", "×", "3.00", "(3.00", "to", "3.00)"]
    assert told[4][:3] == ["TTFT", "p50", "ms,"]
    assert told[-1] == ["idle:", "vllm", "uses", "1.5%", "of", "a", "core"]


def test_file_has_everything_that_was_measured() -> None:
    findings = Findings(missing={"vllm": ["python"]})
    take_turns(["w1"], [Scripted("footplate", [3], []).entrant("w1")], findings, repeats=1, say=lambda _: None)
    told = as_json(findings, repeats=1)
    assert told["repeats"] == 1
    assert told["missing"] == {"vllm": ["python"]}
    assert told["measurements"][0]["figures"]["output_tokens_per_second"] == 3
    assert told["comparisons"][0]["medians"] == {"footplate": 3}


def test_a_metric_that_nobody_tells_is_left_out() -> None:
    measurement = Measurement(workload="w2", form="engine", contender="vllm", round=0, figures={"ttft_ms": {}})
    assert compare([measurement]) == []
    assert ("w2", "engine") in METRICS
