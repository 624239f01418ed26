"""What a chart is given of a frame."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serving.contracts.messages import EngineSnapshot
from serving.telemetry.books import Books
from serving.telemetry.frames import (
    INTERVAL_NAMES,
    PERCENTILES,
    POINT_FIELDS,
    WINDOWS_SECONDS,
    Frame,
    IntervalSummaries,
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
    for name in ("unix_seconds", "percentiles", "tunables_version"):
        del figures[name]
    assert figures == dict.fromkeys(figures, 0)


def test_percentiles_stand_by_window_interval_and_percent() -> None:
    def summary(window: int, interval: int) -> IntervalSummary:
        base = window + interval / 10
        return IntervalSummary(count=1, p50=base + 0.01, p90=99.0, p95=base + 0.02, p99=base + 0.0300000004)

    windows = [
        IntervalSummaries(**{name: summary(window, place) for place, name in enumerate(INTERVAL_NAMES)})
        for window in range(len(WINDOWS_SECONDS))
    ]
    percentiles = point_of(frame_of(windows=windows)).percentiles
    expected = [
        [[round(window + interval / 10 + part, 6) for part in (0.01, 0.02, 0.03)] for interval in range(4)]
        for window in range(4)
    ]
    assert percentiles == expected
    assert PERCENTILES == (50, 95, 99)


def test_where_nothing_was_measured_there_is_no_percentile() -> None:
    assert point_of(frame_of()).percentiles == [[[None, None, None]] * 4] * 4


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
