"""What a run comes to, from what was noted of it."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.lab.gaps import DurationCounts
from serving.lab.recording import CLOSED_LOOP, COORDINATED_OMISSION, Gauges, Recorder, is_good, measured_until
from serving.lab.summaries import Outcome
from serving.lab.workloads.arrivals import ClosedLoop, Poisson
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Slo, Workload

SLO = Slo(ttft_ms=500, itl_ms=50)
WORKLOAD = Workload(
    name="w",
    arrivals=Poisson(1),
    classes=(
        RequestClass(name="a", prompt_tokens=Fixed(10), output_tokens=Fixed(5), slo=SLO),
        RequestClass(name="b", prompt_tokens=Fixed(10), output_tokens=Fixed(5)),
    ),
    duration_seconds=100,
    warm_up_seconds=10,
)


def outcome(**changes: Any) -> Outcome:
    usual: dict[str, Any] = {
        "index": 0,
        "request_class": "a",
        "tenant": "",
        "due_seconds": 20.0,
        "end_seconds": 21.0,
        "ending": "finished",
        "num_prompt_tokens": 10,
        "num_output_tokens": 5,
        "is_streamed": True,
        "ttft_seconds": 0.2,
        "tpot_seconds": 0.01,
        "e2e_seconds": 1.0,
    }
    return Outcome(**{**usual, **changes})


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_counted_percentile_is_within_one_percent(values: list[float], share: float) -> None:
    counts = DurationCounts()
    for value in values:
        counts.add(value)
    found = counts.quantile_seconds(share)
    assert found == pytest.approx(float(np.quantile(values, share, method="lower")), rel=0.011)
    assert counts.percentiles() is not None


@given(st.lists(st.floats(0, 100), max_size=50), st.lists(st.floats(0, 100), max_size=50))
def test_parts_merge_into_what_one_would_have_counted(one: list[float], other: list[float]) -> None:
    whole, first, second = DurationCounts(), DurationCounts(), DurationCounts()
    for value in one:
        whole.add(value)
        first.add(value)
    for value in other:
        whole.add(value, count=3)
        second.add(value, count=3)
    first.merge(second)
    assert first.count == whole.count
    assert first.quantile_seconds(0.9) == whole.quantile_seconds(0.9)


def test_requests_of_the_warm_up_count_in_no_figure() -> None:
    recorder = Recorder(WORKLOAD)
    recorder.end(outcome(is_warm_up=True, ttft_seconds=9.0))
    recorder.end(outcome(index=1))
    recorder.note_gap("a", seconds=9.0, at_seconds=5, is_warm_up=True)
    recorder.note_gap("a", seconds=0.02, at_seconds=20)
    summary = recorder.summary(wall_seconds=60)
    assert (summary.total.num_requests, summary.num_warm_up_requests, summary.measured_seconds) == (1, 1, 50)
    assert summary.total.ttft_ms is not None
    assert summary.total.ttft_ms.max == 200
    assert summary.total.itl_ms is not None
    assert summary.total.itl_ms.count == 1
    assert summary.total.requests_per_second == pytest.approx(1 / 50)


def test_endings_are_told_apart_and_only_the_good_are_goodput() -> None:
    recorder = Recorder(WORKLOAD)
    recorder.end(outcome())
    recorder.end(outcome(index=1, ttft_seconds=0.6))
    recorder.end(outcome(index=2, ending="refused", code="queue_full"))
    recorder.end(outcome(index=3, ending="failed", code="broken"))
    recorder.end(outcome(index=4, ending="cancelled"))
    recorder.end(outcome(index=5, request_class="b", ttft_seconds=60.0, queue_seconds=2.0))
    summary = recorder.summary(wall_seconds=110)
    total = summary.total
    assert (total.num_finished, total.num_refused, total.num_failed, total.num_cancelled) == (3, 1, 1, 1)
    assert total.goodput_per_second == pytest.approx(2 / 100)
    assert total.slo_met_ratio == pytest.approx(2 / 5)
    assert total.num_delayed == 1
    assert (summary.refused_by_code, summary.failed_by_code) == ({"queue_full": 1}, {"broken": 1})
    assert summary.classes["b"].slo_met_ratio == 1
    assert sum(moment.num_finished for moment in summary.moments) == 3


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"tpot_seconds": 0.051}, False),
        ({"tpot_seconds": None}, True),
        ({"ending": "failed"}, False),
        ({"ending": "cancelled"}, False),
    ],
)
def test_a_request_is_good_where_it_keeps_what_is_asked(changes: dict[str, Any], good: bool) -> None:
    assert is_good(outcome(**changes), SLO) is good


def test_gauges_are_means_peaks_and_growth() -> None:
    recorder = Recorder(WORKLOAD)
    for at, (running, rss, preemptions) in enumerate([(1, 100, 5), (3, 300, 7), (5, 200, 1)], start=20):
        gauges = Gauges(num_running=running, host_memory_bytes=rss, preemptions=preemptions, busy_ratio=0.5)
        recorder.note_gauges(at, gauges)
    summary = recorder.summary(wall_seconds=60)
    assert (summary.peak_host_memory_bytes, summary.preemptions, summary.mean_busy_ratio) == (300, 2, 0.5)
    assert summary.peak_device_memory_bytes is None


def test_moments_are_few_and_add_up() -> None:
    recorder = Recorder(WORKLOAD)
    for second in range(5000):
        recorder.note_arrival(at_seconds=second)
        recorder.note_tokens(at_seconds=second + 0.5, count=2)
    summary = recorder.summary(wall_seconds=5000)
    assert len(summary.moments) <= 300
    assert sum(moment.num_arrived for moment in summary.moments) == 5000
    assert sum(m.output_tokens_per_second * m.seconds for m in summary.moments) == pytest.approx(10_000)


def test_it_says_how_arrivals_bear_on_latency() -> None:
    assert COORDINATED_OMISSION in Recorder(WORKLOAD).summary(wall_seconds=1).notes
    closed = msgspec.structs.replace(WORKLOAD, arrivals=ClosedLoop(2))
    assert CLOSED_LOOP in Recorder(closed).summary(wall_seconds=1).notes


def test_a_recorder_goes_from_one_process_to_another_and_merges() -> None:
    one, other = Recorder(WORKLOAD), Recorder(WORKLOAD)
    one.end(outcome())
    other.end(outcome(index=1))
    other.note_gap("b", seconds=0.5, at_seconds=20)
    one.merge(pickle.loads(pickle.dumps(other)))
    summary = one.summary(wall_seconds=60)
    assert summary.total.num_requests == 2
    assert summary.classes["b"].itl_ms is not None


def test_what_was_never_measured_is_none_and_not_zero() -> None:
    summary = Recorder(WORKLOAD).summary(wall_seconds=0)
    assert summary.total.ttft_ms is None
    assert summary.total.slo_met_ratio is None
    assert summary.mean_busy_ratio is None


@pytest.mark.parametrize(
    ("duration", "count", "until"),
    [(60.0, None, 60.0), (30.0, None, 40.0), (60.0, 5, 40.0), (60.0, 6, 60.0), (None, 5, 40.0)],
)
def test_a_run_counts_to_its_last_answer_or_its_durations_end(
    duration: float | None, count: int | None, until: float
) -> None:
    """What five requests, the last of which was answered after 40 s, are measured over."""
    some = msgspec.structs.replace(WORKLOAD, duration_seconds=duration, num_requests=count)
    assert measured_until(some, ended_at=40.0, num_requests=5) == until
