"""What a chart is given of a frame."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serving.contracts.messages import EngineSnapshot
from serving.telemetry.books import Books
from serving.telemetry.events import event_of
from serving.telemetry.frames import (
    INTERVAL_NAMES,
    PERCENTILES,
    POINT_FIELDS,
    WINDOWS_SECONDS,
    Frame,
    IntervalSummaries,
    Objectives,
    OutcomeRates,
    Point,
    StepRates,
    decode_frame,
    encode_frame,
)
from serving.telemetry.points import live_frame_of, point_of
from serving.telemetry.sketches import IntervalSummary
from tests.telemetry.conftest import POOL, snapshot


def frame_of(*engines: EngineSnapshot, **changes: Any) -> Frame:
    values: dict[str, Any] = {
        "sequence": 7,
        "unix_seconds": 1_750_000_000.123456,
        "pool": POOL,
        "windows": [IntervalSummaries()] * len(WINDOWS_SECONDS),
        "prompt_tokens_per_second": 12.345,
        "generated_tokens_per_second": 678.96,
        "num_unread": 0,
        "num_unread_tokens": 0,
        "announced_version": 3,
        "engines": list(engines),
        "books": Books(counts={"submitted": 5, "finished:stop": 2}, num_waiting=1, num_running=2),
    }
    return Frame(**{**values, **changes})


def test_engines_and_inbox_are_added_up() -> None:
    blocks = {"kv_blocks_total": 300, "kv_blocks_used": 100, "kv_blocks_cached": 50}
    engine = {"num_waiting": 2, "num_waiting_tokens": 70, "num_running": 4, "rss_bytes": 1000, **blocks}
    frame = frame_of(
        snapshot("a", **engine, busy_ratio=0.25), snapshot("b", **engine), num_unread=3, num_unread_tokens=9
    )
    point = point_of(frame)
    assert (point.num_waiting, point.num_waiting_tokens, point.num_running) == (7, 149, 8)
    assert (point.kv_used_ratio, point.kv_cached_ratio) == (0.3333, 0.1667)
    assert (point.utilisation_ratio, point.memory_bytes) == (0.125, 2000)
    assert (point.prompt_tokens_per_second, point.generated_tokens_per_second) == (12.3, 679.0)
    assert point.unix_seconds == 1_750_000_000.123


def test_an_accelerators_own_figures_stand_for_the_processes() -> None:
    on_gpu = snapshot("a", accelerator_ratio=0.8, accelerator_memory_bytes=10**10, busy_ratio=0.1, rss_bytes=5)
    on_cpu = snapshot("b", busy_ratio=0.4, rss_bytes=7)
    point = point_of(frame_of(on_gpu, on_cpu))
    assert (point.utilisation_ratio, point.memory_bytes) == (pytest.approx(0.6), 10**10 + 7)


def test_memory_of_an_accelerator_that_engines_share_is_counted_once() -> None:
    shared = {"accelerator_id": "GPU-1", "accelerator_memory_bytes": 10**10}
    other = {"accelerator_id": "GPU-2", "accelerator_memory_bytes": 10**9}
    engines = snapshot("a", **shared), snapshot("b", **shared), snapshot("c", **other), snapshot("d", rss_bytes=7)
    point = point_of(frame_of(*engines))
    assert point.memory_bytes == 10**10 + 10**9 + 7
    assert point.memory_by_engine == {"a": 10**10, "b": 10**10, "c": 10**9, "d": 7}


def test_accelerator_at_rest_is_at_rest_whatever_its_engine_does() -> None:
    assert point_of(frame_of(snapshot(accelerator_ratio=0.0, busy_ratio=0.5))).utilisation_ratio == 0


def test_version_in_force_is_the_lowest_that_runs() -> None:
    assert (
        point_of(frame_of(snapshot("a", tunables_version=4), snapshot("b", tunables_version=3))).tunables_version == 3
    )
    assert point_of(frame_of()).tunables_version is None
    # One of them has not heard of any version yet.
    assert (
        point_of(frame_of(snapshot("a", tunables_version=0), snapshot("b", tunables_version=3))).tunables_version
        is None
    )


def test_pool_without_engines_is_all_nought() -> None:
    point = point_of(frame_of(prompt_tokens_per_second=0.0, generated_tokens_per_second=0.0))
    figures = {name: getattr(point, name) for name in POINT_FIELDS}
    for name in ("unix_seconds", "percentiles"):
        del figures[name]
    named = ("waiting_by_priority", "refusals_per_second", "utilisation_by_engine", "memory_by_engine")
    assert [figures.pop(name) for name in named] == [{}] * 4
    unknown = ("tunables_version", "step_ms", "prefix_hit_ratio", "kv_free_ratio", "draft_acceptance_ratio")
    assert [figures.pop(name) for name in unknown] == [None] * 5
    assert figures == dict.fromkeys(figures, 0)


def test_lanes_steps_and_outcomes_of_the_last_seconds_are_told() -> None:
    point = point_of(
        frame_of(
            snapshot("a", num_waiting=5, num_waiting_long=2, kv_blocks_free=40),
            snapshot("b", num_waiting=1, num_waiting_long=1, kv_blocks_free=60),
            prefix_hit_ratio=0.123456,
            draft_acceptance_ratio=0.654321,
            step_rates=StepRates(
                prefill_tokens_per_step=100.04,
                decode_tokens_per_step=7.96,
                step_ms=12.34567,
                preemptions_per_second=0.2,
            ),
            outcome_rates=OutcomeRates(finished_per_second=1.6, refused_per_second=0.4, goodput_per_second=1.2),
        )
    )
    assert (point.num_waiting, point.num_waiting_long, point.kv_free_ratio) == (6, 3, 0.5)
    assert (point.prefill_tokens_per_step, point.decode_tokens_per_step) == (100.0, 8.0)
    assert (point.step_ms, point.preemptions_per_second, point.prefix_hit_ratio) == (12.346, 0.2, 0.1235)
    assert point.draft_acceptance_ratio == 0.6543
    assert (point.finished_per_second, point.refused_per_second, point.failed_per_second) == (1.6, 0.4, 0)
    assert (point.aborted_per_second, point.goodput_per_second) == (0, 1.2)


def test_live_frame_tells_objectives_and_events() -> None:
    event = event_of(POOL, "engine_joined", at=1.0, subject="a")
    live = live_frame_of(frame_of(slo=Objectives(ttft_ms=500.0, itl_ms=50.0), events=[event]))
    sent = msgspec.json.decode(msgspec.json.encode(live))
    assert (sent["slo"], sent["events"]) == ({"ttft_ms": 500.0, "itl_ms": 50.0}, [msgspec.to_builtins(event)])


def test_who_waits_is_told_by_priority_and_who_is_yet_to_be_read_apart() -> None:
    point = point_of(
        frame_of(
            snapshot("a", waiting_by_priority={"0": 2, "5": 1, "other": 4, "7": 0}),
            snapshot("b", waiting_by_priority={"0": 1, "-3": 9}),
            num_unread=6,
        )
    )
    assert point.waiting_by_priority == {"-3": 9, "unread": 6, "other": 4, "0": 3, "5": 1}


def test_of_many_priorities_and_reasons_the_largest_are_told_and_the_rest_together() -> None:
    by_priority = {str(level): level + 1 for level in range(12)}
    rates = {f"code_{number}": number + 0.004 for number in range(12)}
    point = point_of(frame_of(snapshot("a", waiting_by_priority=by_priority), refusals_per_second=rates))
    assert point.waiting_by_priority == {str(level): level + 1 for level in range(4, 12)} | {"other": 1 + 2 + 3 + 4}
    assert point.refusals_per_second == {f"code_{number}": number for number in range(4, 12)} | {"other": 6.02}


def test_tokens_of_the_long_lane_are_told_where_every_engine_tells_them() -> None:
    told = snapshot("a", num_waiting_long=2, num_waiting_long_tokens=700)
    older = snapshot("b")
    assert point_of(frame_of(told, snapshot("b", num_waiting_long_tokens=50))).num_waiting_long_tokens == 750
    # One in whose lane nobody waits has nothing to tell.
    assert point_of(frame_of(told, older)).num_waiting_long_tokens == 700
    assert point_of(frame_of(told, snapshot("b", num_waiting_long=1))).num_waiting_long_tokens is None


def test_engines_are_told_apart_by_the_ends_of_their_ids() -> None:
    on_gpu = snapshot("host-abcdef123456", accelerator_ratio=0.81234567, accelerator_memory_bytes=10**10)
    on_cpu = snapshot("host-fedcba123456", busy_ratio=0.4, rss_bytes=7)
    point = point_of(frame_of(on_gpu, on_cpu))
    assert point.utilisation_by_engine == {"abcdef": 0.8123, "fedcba": 0.4}
    assert point.memory_by_engine == {"abcdef": 10**10, "fedcba": 7}
    alike = point_of(frame_of(snapshot("a-same"), snapshot("b-same", busy_ratio=1.0)))
    assert alike.utilisation_by_engine == {"a-same": 0, "b-same": 1}


def test_of_many_engines_eight_are_told_and_the_mean_of_the_others() -> None:
    engines = [snapshot(f"engine-{number:02}", busy_ratio=number / 100, rss_bytes=number) for number in range(11)]
    point = point_of(frame_of(*engines))
    assert point.utilisation_by_engine == {f"{number:02}": number / 100 for number in range(8)} | {"other": 0.09}
    assert point.memory_by_engine == {f"{number:02}": number for number in range(8)} | {"other": 9}


def test_what_an_older_monitor_wrote_tells_nothing_of_what_it_did_not_know() -> None:
    written = msgspec.to_builtins(point_of(frame_of(snapshot(waiting_by_priority={"0": 4}))))
    older = msgspec.convert(written[: POINT_FIELDS.index("num_waiting_long_tokens")], Point)
    assert (older.waiting_by_priority, older.refusals_per_second, older.num_waiting_long_tokens) == (None, None, None)
    assert (older.utilisation_by_engine, older.memory_by_engine) == (None, None)


def test_point_of_other_percentiles_is_not_decoded() -> None:
    point = msgspec.to_builtins(point_of(frame_of()))
    place = POINT_FIELDS.index("percentiles")
    assert msgspec.convert(point, Point).num_running == 0
    point[place] = [[row[:3] for row in window] for window in point[place]]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(point, Point)


def test_percentiles_stand_by_window_interval_and_percent() -> None:
    def summary(window: int, interval: int) -> IntervalSummary:
        base = window + interval / 10
        return IntervalSummary(count=1, p50=base + 0.01, p90=base + 0.02, p95=base + 0.03, p99=base + 0.0400000004)

    windows = [
        IntervalSummaries(**{name: summary(window, place) for place, name in enumerate(INTERVAL_NAMES)})
        for window in range(len(WINDOWS_SECONDS))
    ]
    percentiles = point_of(frame_of(windows=windows)).percentiles
    expected = [
        [[round(window + interval / 10 + part, 6) for part in (0.01, 0.02, 0.03, 0.04)] for interval in range(4)]
        for window in range(4)
    ]
    assert percentiles == expected
    assert PERCENTILES == (50, 90, 95, 99)


def test_where_nothing_was_measured_there_is_no_percentile() -> None:
    assert point_of(frame_of()).percentiles == [[[None] * 4] * 4] * 4


def test_point_is_sent_as_an_array_in_the_order_of_its_fields() -> None:
    live = live_frame_of(frame_of(snapshot(num_running=4)))
    sent = msgspec.json.decode(msgspec.json.encode(live))
    assert dict(zip(POINT_FIELDS, sent["point"], strict=True)) == {
        name: getattr(live.point, name) for name in POINT_FIELDS
    }
    assert sent["outcomes"] == {"submitted": 5, "finished:stop": 2, "waiting": 1, "running": 2}


def test_frame_of_other_windows_is_not_decoded() -> None:
    content = encode_frame(frame_of())
    assert decode_frame(content) == frame_of()
    with pytest.raises(msgspec.ValidationError):
        decode_frame(encode_frame(frame_of(windows=[IntervalSummaries()])))
