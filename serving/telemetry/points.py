"""From a frame to what a console draws of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from serving.contracts.messages import EngineSnapshot
from serving.telemetry.frames import INTERVAL_NAMES, PERCENTILES, Frame, IntervalSummaries, LiveFrame, Point

_RATIO_DIGITS = 4
_RATE_DIGITS = 1
_REQUEST_DIGITS = 2
_MS_DIGITS = 3
_SECONDS_DIGITS = 6


def point_of(frame: Frame) -> Point:
    """The frame as one moment of a chart: all engines added up, figures rounded to what can be seen."""
    engines = frame.engines
    num_blocks = sum(engine.kv_blocks_total for engine in engines)
    return Point(
        unix_seconds=round(frame.unix_seconds, 3),
        num_waiting=frame.num_unread + sum(engine.num_waiting for engine in engines),
        num_waiting_tokens=frame.num_unread_tokens + sum(engine.num_waiting_tokens for engine in engines),
        num_running=sum(engine.num_running for engine in engines),
        kv_used_ratio=_ratio(sum(engine.kv_blocks_used for engine in engines), num_blocks),
        kv_cached_ratio=_ratio(sum(engine.kv_blocks_cached for engine in engines), num_blocks),
        prompt_tokens_per_second=round(frame.prompt_tokens_per_second, _RATE_DIGITS),
        generated_tokens_per_second=round(frame.generated_tokens_per_second, _RATE_DIGITS),
        utilisation_ratio=_ratio(sum(map(_utilisation, engines)), len(engines)),
        memory_bytes=sum(map(_memory, engines)),
        # An engine that began before anything was announced runs version 0, its own defaults.
        tunables_version=min((engine.tunables_version for engine in engines), default=0) or None,
        percentiles=[percentiles_of(window) for window in frame.windows],
        num_waiting_long=sum(engine.num_waiting_long for engine in engines),
        **_step_rates(frame),
        prefix_hit_ratio=None if frame.prefix_hit_ratio is None else round(frame.prefix_hit_ratio, _RATIO_DIGITS),
        **_outcome_rates(frame),
        kv_free_ratio=_ratio(sum(engine.kv_blocks_free for engine in engines), num_blocks),
    )


def live_frame_of(frame: Frame) -> LiveFrame:
    """What consoles are sent of the frame."""
    books = frame.books
    return LiveFrame(
        sequence=frame.sequence,
        pool=frame.pool,
        point=point_of(frame),
        announced_version=frame.announced_version,
        outcomes={**books.counts, "waiting": books.num_waiting, "running": books.num_running},
        engines=frame.engines,
        waiting_by_priority=_waiting_by_priority(frame.engines),
        refusals=frame.refusals,
        slo=frame.slo,
        events=frame.events,
    )


def _step_rates(frame: Frame) -> dict[str, Any]:
    rates = frame.step_rates
    return {
        "prefill_tokens_per_step": round(rates.prefill_tokens_per_step, _RATE_DIGITS),
        "decode_tokens_per_step": round(rates.decode_tokens_per_step, _RATE_DIGITS),
        "step_ms": None if rates.step_ms is None else round(rates.step_ms, _MS_DIGITS),
        "preemptions_per_second": round(rates.preemptions_per_second, _REQUEST_DIGITS),
    }


def _outcome_rates(frame: Frame) -> dict[str, float]:
    rates: dict[str, float] = msgspec.structs.asdict(frame.outcome_rates)
    return {name: round(rate, _REQUEST_DIGITS) for name, rate in rates.items()}


def _waiting_by_priority(engines: Iterable[EngineSnapshot]) -> dict[str, int]:
    waiting: Counter[str] = Counter()
    for engine in engines:
        waiting.update(engine.waiting_by_priority)
    return {priority: count for priority, count in waiting.most_common() if count}


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, _RATIO_DIGITS) if whole else 0.0


def _utilisation(engine: EngineSnapshot) -> float:
    return engine.busy_ratio if engine.accelerator_ratio is None else engine.accelerator_ratio


def _memory(engine: EngineSnapshot) -> int:
    return engine.rss_bytes if engine.accelerator_memory_bytes is None else engine.accelerator_memory_bytes


def percentiles_of(window: IntervalSummaries) -> list[list[float | None]]:
    """`[interval][percentile]`, as a point has them."""
    return [
        _rounded(getattr(getattr(window, interval), f"p{percent}") for percent in PERCENTILES)
        for interval in INTERVAL_NAMES
    ]


def _rounded(seconds: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, _SECONDS_DIGITS) for value in seconds]
