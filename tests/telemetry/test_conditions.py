"""Bounds on what frames tell."""

from __future__ import annotations

import msgspec
import pytest

from serving.contracts.errors import InvalidValue
from serving.contracts.ids import PoolName
from serving.telemetry.books import Books
from serving.telemetry.conditions import METRICS, Condition, ConditionWatch, Reading, Readings, told
from serving.telemetry.frames import WINDOWS_SECONDS, Frame, IntervalSummaries
from serving.telemetry.sketches import sketch_values, summarise


def frame_at(seconds: float, *, counts: dict[str, int] | None = None, ttfts: tuple[float, ...] = ()) -> Frame:
    window = IntervalSummaries(ttft_seconds=summarise(sketch_values(ttfts)))
    return Frame(
        sequence=1,
        unix_seconds=seconds,
        pool=PoolName("chat"),
        windows=[window] * len(WINDOWS_SECONDS),
        prompt_tokens_per_second=0.0,
        generated_tokens_per_second=12.5,
        num_unread=3,
        num_unread_tokens=30,
        announced_version=1,
        engines=[],
        books=Books(counts=counts or {}, num_waiting=0, num_running=0),
    )


def condition(**changes: object) -> Condition:
    return msgspec.structs.replace(Condition(metric="ttft_p95", bound=500.0, for_seconds=10.0), **changes)


def test_percentiles_are_read_in_milliseconds_with_their_number_of_samples() -> None:
    readings = Readings().see(frame_at(0, ttfts=(0.2,) * 40))
    assert readings["ttft_p95"].value == pytest.approx(200, rel=0.011)
    assert readings["ttft_p95"].num_samples == 40
    assert "itl_p50" not in readings
    assert readings["waiting"] == Reading(3)
    assert readings["generated_rate"] == Reading(12.5)
    assert readings["engines"] == Reading(0)


def test_shares_are_those_of_the_last_minute_and_leave_out_what_was_given_up() -> None:
    readings = Readings()
    assert "error_ratio" not in readings.see(frame_at(0, counts={"finished:stop": 100, "failed:internal_error": 50}))
    later = {"finished:stop": 107, "failed:internal_error": 51, "refused:queue_full": 2, "aborted": 500}
    seen = readings.see(frame_at(30, counts=later))
    assert seen["error_ratio"] == Reading(0.1, 10)
    assert seen["refused_ratio"] == Reading(0.2, 10)
    assert readings.see(frame_at(85, counts=later | {"finished:stop": 108}))["error_ratio"] == Reading(0.0, 1)


def test_books_that_began_anew_tell_nothing_until_they_have_grown() -> None:
    readings = Readings()
    readings.see(frame_at(0, counts={"finished:stop": 100}))
    assert "error_ratio" not in readings.see(frame_at(10, counts={"finished:stop": 1}))
    assert readings.see(frame_at(11, counts={"finished:stop": 2}))["error_ratio"] == Reading(0.0, 1)


def test_a_condition_is_missed_once_that_has_lasted_without_a_break() -> None:
    watch = ConditionWatch(condition())
    bad, good = Reading(501, 50), Reading(500, 50)
    assert [watch.see(bad, now=now) for now in (0, 5, 9.9)] == [False] * 3
    assert watch.see(bad, now=10)
    assert not watch.see(good, now=11)
    assert not watch.see(bad, now=12)
    assert watch.see(bad, now=22)


@pytest.mark.parametrize("unknown", [None, Reading(9999, 4)])
def test_what_is_not_told_or_of_too_few_samples_is_no_miss(unknown: Reading | None) -> None:
    watch = ConditionWatch(condition())
    watch.see(Reading(501, 50), now=0)
    assert not watch.see(unknown, now=10)
    assert not watch.see(Reading(501, 50), now=11)


def test_a_lower_bound_is_missed_below_it() -> None:
    watch = ConditionWatch(condition(metric="engines", bound=1, is_above=False, for_seconds=0))
    assert not watch.see(Reading(1), now=0)
    assert watch.see(Reading(0), now=1)


def test_a_clock_that_was_set_back_begins_anew() -> None:
    watch = ConditionWatch(condition())
    watch.see(Reading(501, 50), now=100)
    assert not watch.see(Reading(501, 50), now=50)
    assert watch.see(Reading(501, 50), now=60)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"metric": "tttf_p95"}, "metric"),
        ({"bound": -1.0}, "bound"),
        ({"bound": float("nan")}, "bound"),
        ({"metric": "error_ratio", "bound": 1.5}, "bound"),
        ({"for_seconds": 3601.0}, "for_seconds"),
        ({"for_seconds": float("inf")}, "for_seconds"),
    ],
)
def test_what_cannot_be_watched_is_refused_by_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidValue, match=field):
        condition(**changes).check()


def test_every_metric_can_be_said_and_bounded() -> None:
    for name in METRICS:
        one = condition(metric=name, bound=1.0)
        one.check()
        assert METRICS[name].title in one.describe()
    assert condition().describe() == "TTFT p95 above 500 ms for 10 s"
    assert told(0.125, "share") == "12.5 %"
