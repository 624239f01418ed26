"""The past as charts draw it, and what was measured before and after a moment."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.utils import timezone

from serving.contracts.errors import InvalidValue
from serving.telemetry.frames import POINT_FIELDS
from serving.telemetry.history_selectors import (
    events_between,
    measured_between,
    percentiles_between,
    read_series,
)
from serving.telemetry.models import PoolEvent, Rollup
from serving.telemetry.rollups import RollupContent, encode_content
from tests.telemetry.conftest import POOL
from tests.telemetry.test_rollups import point_at, stretch

pytestmark = pytest.mark.django_db

MINUTE, HOUR, DAY = (datetime.timedelta(**{unit: 1}) for unit in ("minutes", "hours", "days"))


def whole_hour(*, hours_ago: int) -> datetime.datetime:
    return timezone.now().replace(minute=0, second=0, microsecond=0) - hours_ago * HOUR


def keep(at: datetime.datetime, content: RollupContent, *, seconds: int = 10, pool: str = POOL) -> None:
    Rollup.objects.create(pool=pool, seconds=seconds, starts_at=at, content=encode_content(content))


def keep_many(since: datetime.datetime, *, seconds: int, count: int) -> None:
    content = encode_content(stretch(0.1, submitted=1))
    step = datetime.timedelta(seconds=seconds)
    Rollup.objects.bulk_create(
        Rollup(pool=POOL, seconds=seconds, starts_at=since + number * step, content=content) for number in range(count)
    )


def test_rows_have_the_fields_of_a_point_in_the_middle_of_their_stretch() -> None:
    since = whole_hour(hours_ago=2)
    points = [point_at(1.0, num_running=2, step_ms=8.0), point_at(2.0, num_running=4, step_ms=16.0)]
    keep(since, stretch(0.5, points=points, **{"finished:stop": 30, "refused:queue_full": 5, "rejected:bad": 1}))
    keep(since + 2 * MINUTE, stretch(0.5))
    keep(since, stretch(9.0), pool="other")
    series = read_series(POOL, since, since + HOUR)
    assert (series.seconds, series.fields, len(series.points)) == (10, POINT_FIELDS, 2)
    first, second = (dict(zip(series.fields, row, strict=True)) for row in series.points)
    assert [row["unix_seconds"] for row in (first, second)] == [since.timestamp() + 5, since.timestamp() + 125]
    assert (first["num_running"], first["step_ms"], first["finished_per_second"]) == (3.0, 12.0, 3.0)
    assert first["percentiles"][0][1] == [pytest.approx(0.5, rel=0.01)] * 4
    assert series.highest[0]["num_running"] == 4
    assert first["refusals_per_second"] == {"queue_full": 0.5, "rejected:bad": 0.1}
    assert second["refusals_per_second"] == {}
    assert second["num_running"] is None
    assert series.covered == [10, 10]


def test_a_long_stretch_says_of_how_much_of_it_it_tells() -> None:
    since = whole_hour(hours_ago=5)
    keep(since, stretch(0.1, **{"refused:queue_full": 1}), seconds=600)
    series = read_series(POOL, since, since + HOUR, least_seconds=600)
    (row,) = (dict(zip(series.fields, row, strict=True)) for row in series.points)
    assert (series.seconds, series.covered, row["refusals_per_second"]) == (600, [10], {"queue_full": 0.1})


@pytest.mark.parametrize(
    ("hours_ago", "length", "max_points", "seconds"),
    [
        (1, HOUR, 720, 10),
        (1, HOUR, 300, 60),
        (5, 6 * HOUR, 720, 60),
        (23, 24 * HOUR, 720, 600),
        (23, 24 * HOUR, 1500, 60),
        (48, HOUR, 720, 60),  # the shortest are gone by then
        (24 * 5, HOUR, 720, 600),
        (24 * 40, HOUR, 720, 3600),
        (24 * 500, HOUR, 720, 3600),
        (24 * 31 - 1, 31 * DAY, 100, 3600),
    ],
)
def test_the_shortest_stretches_that_are_kept_and_few_enough_are_taken(
    hours_ago: int, length: datetime.timedelta, max_points: int, seconds: int
) -> None:
    since = timezone.now() - hours_ago * HOUR
    assert read_series(POOL, since, since + length, max_points=max_points).seconds == seconds


def test_a_short_range_that_goes_on_with_a_long_one_comes_in_stretches_of_its_length() -> None:
    since = whole_hour(hours_ago=2)
    keep_many(since, seconds=10, count=12)
    keep_many(since, seconds=60, count=2)
    series = read_series(POOL, since, since + 2 * MINUTE, least_seconds=60)
    assert (series.seconds, [row[0] - since.timestamp() for row in series.points]) == (60, [30.0, 90.0])
    assert read_series(POOL, since, since + HOUR, max_points=1, least_seconds=60).seconds == 3600


@pytest.mark.parametrize(
    ("begin", "end", "middles"),
    [(1, 35, [5.0, 15.0, 25.0, 35.0, 45.0]), (20, 30, [15.0, 25.0, 35.0]), (22, 27, [15.0, 25.0, 35.0])],
)
def test_stretches_over_which_the_range_reaches_have_one_on_either_side(
    begin: int, end: int, middles: list[float]
) -> None:
    since = whole_hour(hours_ago=2)
    keep_many(since, seconds=10, count=6)
    series = read_series(POOL, since + datetime.timedelta(seconds=begin), since + datetime.timedelta(seconds=end))
    assert [row[0] - since.timestamp() for row in series.points] == middles


def test_a_few_minutes_of_last_week_are_told_of_in_the_stretches_that_are_kept() -> None:
    since = whole_hour(hours_ago=24 * 7)
    keep_many(since, seconds=600, count=6)
    series = read_series(POOL, since + 12 * MINUTE, since + 15 * MINUTE)
    assert (series.seconds, [row[0] - since.timestamp() for row in series.points]) == (600, [300.0, 900.0, 1500.0])


def test_a_stretch_that_is_not_over_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    since = whole_hour(hours_ago=0)
    monkeypatch.setattr(timezone, "now", lambda: since + datetime.timedelta(seconds=59))
    keep(since, stretch(0.1), seconds=60)
    keep(since - MINUTE, stretch(0.1), seconds=60)
    series = read_series(POOL, since - MINUTE, since + datetime.timedelta(seconds=1), least_seconds=60)
    assert [row[0] - since.timestamp() for row in series.points] == [-30.0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"until": datetime.timedelta()}, "until"),
        ({"until": -MINUTE}, "until"),
        ({"until": 31 * DAY + MINUTE}, "since"),
        ({"max_points": 0}, "max_points"),
        ({"max_points": 1501}, "max_points"),
        ({"least_seconds": 30}, "least_seconds"),
    ],
)
def test_ranges_out_of_bounds_are_refused(changes: dict[str, Any], field: str) -> None:
    since = timezone.now() - 40 * DAY
    until = since + changes.get("until", HOUR)
    with pytest.raises(InvalidValue) as refused:
        read_series(POOL, since, until, **{name: changes[name] for name in changes if name != "until"})
    assert refused.value.field == field


def test_before_and_after_a_moment_are_told_apart_to_ten_seconds() -> None:
    moment = whole_hour(hours_ago=3) + datetime.timedelta(seconds=15)
    ten = datetime.timedelta(seconds=10)
    for number in range(1, 61):
        keep(whole_hour(hours_ago=3) - number * ten, stretch(*[1.0] * 10, submitted=10))
        keep(whole_hour(hours_ago=3) + (number + 1) * ten, stretch(*[2.0] * 10, submitted=10))
    keep(whole_hour(hours_ago=3) + ten, stretch(*[50.0] * 10))
    before, after = (
        percentiles_between(POOL, moment - 10 * MINUTE, moment),
        percentiles_between(POOL, moment, moment + 10 * MINUTE),
    )
    assert before is not None
    assert after is not None
    assert (before.ttft_seconds.p99, after.ttft_seconds.p99) == (
        pytest.approx(1.0, rel=0.01),
        pytest.approx(2.0, rel=0.01),
    )
    assert (before.ttft_seconds.count, after.ttft_seconds.count, before.itl_seconds.count) == (580, 590, 0)


def test_all_that_was_measured_is_added_up() -> None:
    since = whole_hour(hours_ago=1)
    keep(since, stretch(0.1, points=[point_at(1.0, generated_tokens_per_second=100.0)], submitted=4))
    keep(since + MINUTE, stretch(0.1, points=[point_at(1.0, generated_tokens_per_second=300.0)], submitted=6))
    measured = measured_between(POOL, since, since + 10 * MINUTE)
    assert measured is not None
    assert (measured.seconds, measured.counts, measured.means["generated_tokens_per_second"]) == (
        20,
        {"submitted": 10},
        200.0,
    )


def test_of_a_time_of_which_nothing_is_kept_nothing_is_told() -> None:
    now = timezone.now()
    assert percentiles_between(POOL, now - HOUR, now) is None
    keep_many(whole_hour(hours_ago=24 * 5), seconds=600, count=6)
    # In stretches of ten minutes these ten minutes cannot be told apart from what was beside them.
    moment = whole_hour(hours_ago=24 * 5) + 15 * MINUTE
    assert measured_between(POOL, moment, moment + 10 * MINUTE) is None
    assert measured_between(POOL, moment, moment + 20 * MINUTE) is not None


def test_events_of_a_range_are_told_newest_first() -> None:
    now = timezone.now()
    for minutes, pool in ((1, POOL), (2, POOL), (90, POOL), (3, "other")):
        at = now - minutes * MINUTE
        PoolEvent.objects.create(event_id=f"e{minutes}", pool=pool, at=at, kind="engine_lost", subject="engine-1")
    events = events_between(POOL, now - HOUR, now)
    assert [(event.event_id, event.kind, event.subject) for event in events] == [
        ("e1", "engine_lost", "engine-1"),
        ("e2", "engine_lost", "engine-1"),
    ]
    assert events[0].at == pytest.approx((now - MINUTE).timestamp())
    assert len(events_between(POOL, now - 2 * HOUR, now, limit=2)) == 2
