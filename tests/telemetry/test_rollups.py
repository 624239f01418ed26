"""What is kept of a stretch of time, and what the sum of many is."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from serving.telemetry.frames import INTERVAL_NAMES, POINT_FIELDS, Point
from serving.telemetry.intervals import Intervals
from serving.telemetry.rollups import (
    GAUGES,
    NAMED_GAUGES,
    RollupContent,
    content_of,
    decode_content,
    encode_content,
    highest_of,
    means_of,
    merge,
    row_of,
)
from serving.telemetry.sketches import sketch_values


def point_at(unix_seconds: float, **changes: Any) -> Point:
    nothing = [[[None] * 4] * 4] * 4
    values = {"num_running": 0, "tunables_version": 1, **changes}
    fixed = [values.get(name, 0) for name in POINT_FIELDS[1 : POINT_FIELDS.index("percentiles")]]
    later = {name: value for name, value in changes.items() if name in POINT_FIELDS[12:]}
    return Point(unix_seconds, *fixed, nothing, **later)


def stretch(*ttfts: float, points: list[Point] | None = None, **counts: int) -> RollupContent:
    content = content_of(Intervals(ttft=sketch_values(ttfts)), counts=counts, points=points or [])
    assert content is not None
    return content


def row(content: RollupContent) -> dict[str, Any]:
    return dict(zip(POINT_FIELDS, row_of(content, unix_seconds=5.0), strict=True))


def test_stretch_of_which_nothing_is_known_is_none() -> None:
    assert content_of(Intervals(), counts={"submitted": 0}, points=[]) is None
    assert content_of(Intervals(), counts={}, points=[point_at(1.0)]) is not None
    assert content_of(Intervals(), counts={"submitted": 1}, points=[]) is not None


def test_gauges_have_a_mean_and_a_highest_over_points_that_tell_them() -> None:
    points = [
        point_at(1.0, num_running=2, step_ms=10.0),
        point_at(2.0, num_running=6, step_ms=None),
        point_at(3.0, num_running=4, step_ms=20.0, tunables_version=3),
    ]
    content = stretch(points=points)
    assert (means_of(content)["num_running"], highest_of(content)["num_running"]) == (4.0, 6.0)
    assert (means_of(content)["step_ms"], highest_of(content)["step_ms"]) == (15.0, 20.0)
    assert "prefix_hit_ratio" not in content.gauges
    assert content.tunables_version == 3


def test_every_number_of_a_point_is_a_gauge_or_counted_exactly() -> None:
    counted = {"finished", "refused", "failed", "aborted", "goodput"}
    rest = set(POINT_FIELDS) - set(GAUGES) - {f"{name}_per_second" for name in counted}
    assert rest == {"unix_seconds", "tunables_version", "percentiles", "refusals_per_second", *NAMED_GAUGES}


@pytest.mark.parametrize("seconds", [600, 3600])
def test_what_happens_once_in_a_long_stretch_is_told_as_it_was(seconds: int) -> None:
    once = msgspec.structs.replace(stretch(**{"refused:queue_full": 1, "finished:stop": 1}), seconds=seconds)
    told = row(once)
    rates = (told["refusals_per_second"]["queue_full"], told["refused_per_second"], told["finished_per_second"])
    assert rates == pytest.approx((1 / seconds,) * 3, rel=0.01)


def test_who_waits_by_priority_is_a_mean_over_all_points_that_told_of_any() -> None:
    points = [
        point_at(1.0, waiting_by_priority={"0": 4, "-1": 2}),
        point_at(2.0, waiting_by_priority={}),
        point_at(3.0),  # an older monitor's
    ]
    busy = stretch(points=points)
    idle = stretch(points=[point_at(11.0, waiting_by_priority={}), point_at(12.0, waiting_by_priority={"0": 4})])
    assert row(busy)["waiting_by_priority"] == {"0": 2, "-1": 1}
    assert row(merge([busy, idle]))["waiting_by_priority"] == {"0": 2, "-1": 0.5}


def test_an_engines_figures_are_means_over_the_points_in_which_it_lived() -> None:
    points = [
        point_at(1.0, utilisation_by_engine={"a": 0.5, "b": 1.0}, memory_by_engine={"a": 10, "b": 30}),
        point_at(2.0, utilisation_by_engine={"a": 1.0}, memory_by_engine={"a": 20}),
    ]
    values = row(merge([stretch(points=points[:1]), stretch(points=points[1:])]))
    assert values["utilisation_by_engine"] == {"a": 0.75, "b": 1.0}
    assert values["memory_by_engine"] == {"a": 15, "b": 30}


def test_what_no_point_told_of_by_name_is_none_and_not_nothing() -> None:
    values = row(stretch(points=[point_at(1.0)]))
    assert [values[name] for name in NAMED_GAUGES] == [None] * 3
    assert row(stretch(points=[point_at(1.0, waiting_by_priority={})]))["waiting_by_priority"] == {}


def test_refusals_of_a_row_are_counted_exactly_and_the_rarest_together() -> None:
    counts = {f"refused:code_{number}": 10 * number for number in range(12)} | {"rejected:bad": 200, "finished:stop": 9}
    rates = {"rejected:bad": 20.0} | {f"code_{number}": number for number in range(5, 12)}
    assert row(stretch(**counts))["refusals_per_second"] == rates | {"other": 1 + 2 + 3 + 4}


def test_of_many_names_those_told_of_longest_are_kept_and_the_others_together() -> None:
    long = stretch(points=[point_at(at, utilisation_by_engine={"z": 0.5}) for at in (1.0, 2.0, 3.0)])
    short = [stretch(points=[point_at(9.0, utilisation_by_engine={f"e{number:02}": 1.0})]) for number in range(30)]
    kept = row(merge([long, *short]))["utilisation_by_engine"]
    assert (len(kept), kept["z"], kept["e22"], kept["other"]) == (25, 0.5, 1.0, 1.0)


def test_what_was_kept_before_there_were_figures_by_name_is_read() -> None:
    older = msgspec.msgpack.encode({"seconds": 10, "counts": {"refused:queue_full": 5}})
    values = row(merge([decode_content(older), stretch(points=[point_at(1.0, waiting_by_priority={"0": 3})])]))
    assert (values["waiting_by_priority"], values["refusals_per_second"]) == ({"0": 3}, {"queue_full": 0.25})


def test_sum_of_stretches_adds_counts_and_gauges() -> None:
    busy = stretch(0.1, points=[point_at(1.0, num_running=8)], submitted=3, **{"finished:stop": 20, "slo_met": 10})
    idle = stretch(points=[point_at(11.0), point_at(12.0), point_at(13.0)])
    total = merge([busy, idle])
    assert (total.seconds, total.counts["finished:stop"], total.gauges["num_running"].num) == (20, 20, 4)
    means = means_of(total)
    assert (means["num_running"], highest_of(total)["num_running"]) == (2.0, 8.0)
    assert (means["finished_per_second"], means["goodput_per_second"]) == (1.0, 0.5)


def test_percentiles_of_a_sum_are_not_the_mean_of_percentiles() -> None:
    fast, slow = stretch(*[0.1] * 990), stretch(*[10.0] * 10)
    percentiles = row(merge([fast, slow]))["percentiles"][0][INTERVAL_NAMES.index("ttft_seconds")]
    assert percentiles == [pytest.approx(0.1, rel=0.01)] * 4
    assert row(merge([fast, stretch(*[10.0] * 990)]))["percentiles"][0][1][2] == pytest.approx(10.0, rel=0.01)


def test_sums_do_not_mind_how_they_are_made() -> None:
    draw = np.random.default_rng(3)
    parts = [stretch(*draw.lognormal(-2, 1, 50).tolist(), submitted=number) for number in range(36)]
    tens = [merge(parts[at : at + 6]) for at in range(0, 36, 6)]
    at_once, in_steps = merge(parts), merge(tens)
    assert at_once.intervals.ttft.bins == in_steps.intervals.ttft.bins
    assert at_once.intervals.ttft.sum_seconds == pytest.approx(in_steps.intervals.ttft.sum_seconds)
    assert (at_once.counts, at_once.seconds) == (in_steps.counts, in_steps.seconds)


def test_row_has_a_points_fields_and_none_for_what_was_not_measured() -> None:
    values = row(stretch(0.5, submitted=1))
    assert (values["unix_seconds"], values["num_running"], values["step_ms"]) == (5.0, None, None)
    assert values["percentiles"][0][INTERVAL_NAMES.index("itl_seconds")] == [None] * 4
    assert values["finished_per_second"] == 0


def test_content_survives_its_encoding() -> None:
    points = [point_at(1.0, num_running=8, step_ms=2.5, waiting_by_priority={"0": 3, "other": 1})]
    content = stretch(0.1, 0.2, points=points, submitted=2)
    assert decode_content(encode_content(content)) == content
