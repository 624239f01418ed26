"""A canary's engine beside the others, as the Tuning page tells it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from dashboard.tuning_verdict import CanaryVerdict, present_verdict
from serving.contracts.ids import EngineId
from serving.telemetry.frames import IntervalSummaries, Share
from serving.telemetry.sketches import IntervalSummary
from serving.tuning.canary_figures import Work
from serving.tuning.canary_reading import CanaryReading, CanarySide

TOO_FEW = "too few to tell"


def side(count: int, *, ttft: float, gaps: int | None = None, **work: Any) -> CanarySide:
    """So many requests, each of the intervals `ttft` seconds long; 200 steps of 10 ms."""
    same = IntervalSummary(count=count, mean=ttft, p50=ttft, p90=ttft, p95=ttft, p99=ttft)
    itl = same if gaps is None else msgspec.structs.replace(same, count=gaps)
    intervals = IntervalSummaries(queue_time_seconds=same, ttft_seconds=same, itl_seconds=itl, e2e_seconds=same)
    worked = {"seconds": 60.0, "num_steps": 200, "step_seconds": 2.0, "generated_tokens": 600, **work}
    return CanarySide(work=Work(**worked), share=Share(intervals=intervals, ended={"finished:stop": count}))


def verdict_of(others: CanarySide, tried: CanarySide, *, seconds: int | None = 300) -> CanaryVerdict | None:
    reading = CanaryReading(
        number=2,
        engine_id=EngineId("engine-1"),
        started_at=timezone.now(),
        engines=(),
        seconds=seconds,
        tried=tried,
        others=others,
    )
    return present_verdict(reading)


def told(others: CanarySide, tried: CanarySide) -> CanaryVerdict:
    verdict = verdict_of(others, tried)
    assert verdict is not None
    return verdict


def test_each_percentile_is_judged_against_the_other_engines() -> None:
    verdict = told(side(200, ttft=0.2), side(150, ttft=0.1))
    assert [row.title for row in verdict.intervals] == ["TTFT", "ITL", "E2E", "Queue time"]
    ttft = verdict.intervals[0]
    assert (ttft.samples, [figure.title for figure in ttft.figures]) == ("200 → 150", ["p50", "p95", "p99"])
    assert [(f.before, f.after, f.change, f.words) for f in ttft.figures] == [
        ("200 ms", "100 ms", "↓ 50 %", "better")
    ] * 3
    assert verdict.summary == "Of 16 measures: 12 better, 4 about the same"
    assert verdict.requests == "150 requests of the canary, 200 of the other engines"
    assert verdict.note.startswith("Requests of the last 5 min. Of fewer than 20 on a side nothing is judged, a p99")


@pytest.mark.parametrize(("count", "words"), [(19, [TOO_FEW] * 3), (20, ["worse", "worse", TOO_FEW])])
def test_few_requests_are_too_few_to_tell(count: int, words: list[str]) -> None:
    verdict = told(side(200, ttft=0.1), side(count, ttft=0.3))
    assert [figure.words for figure in verdict.intervals[0].figures] == words
    assert verdict.intervals[0].figures[2].change == ""


def test_the_many_gaps_of_few_streams_are_of_few_requests() -> None:
    verdict = told(side(200, ttft=0.1), side(3, ttft=0.3, gaps=5000))
    itl = verdict.intervals[1]
    assert (itl.samples, itl.figures[0].words) == ("200 → 5,000", TOO_FEW)


def test_work_is_an_engines_and_more_load_is_neither_good_nor_bad() -> None:
    others = side(200, ttft=0.1, seconds=180.0, step_seconds=4.0, generated_tokens=3600, num_preemptions=3)
    tried = side(200, ttft=0.1, num_preemptions=14)
    tried = dataclasses.replace(
        tried, share=Share(intervals=tried.share.intervals, ended={"finished:stop": 90, "failed:x": 10, "aborted": 7})
    )
    figures = {figure.title: (figure.before, figure.after, figure.words) for figure in told(others, tried).work}
    assert figures == {
        "Mean step": ("20 ms", "10 ms", "better"),
        "Generated tokens/s, an engine": ("20.0", "10.0", "less"),
        "Preemptions a minute, an engine": ("1.0", "14.0", "worse"),
        "Failed requests": ("0 %", "10 %", "worse"),
    }


def test_a_mishap_or_two_turn_no_verdict() -> None:
    others, tried = side(200, ttft=0.1, num_preemptions=1), side(40, ttft=0.1, num_preemptions=4)
    failed = Share(intervals=tried.share.intervals, ended={"finished:stop": 39, "failed:x": 1})
    figures = told(others, dataclasses.replace(tried, share=failed)).work
    assert [figure.words for figure in figures[2:]] == [TOO_FEW, TOO_FEW]


def test_nothing_is_said_where_no_monitor_tells_and_little_at_the_beginning() -> None:
    assert verdict_of(side(200, ttft=0.1), side(200, ttft=0.1), seconds=None) is None
    nothing = CanarySide(work=Work(), share=Share())
    verdict = told(nothing, nothing)
    assert verdict.summary == "Too few requests to tell yet"
    assert verdict.intervals[0].figures[0].before == "–"


@pytest.mark.parametrize("is_canary_gone", [True, False])
def test_a_side_whose_engines_are_gone_is_too_few_to_tell(is_canary_gone: bool) -> None:
    gone, living = dataclasses.replace(side(40, ttft=0.1), work=Work()), side(40, ttft=0.1, num_preemptions=3)
    preemptions = told(*((living, gone) if is_canary_gone else (gone, living))).work[2]
    assert preemptions.words == TOO_FEW
