"""From a frame to what a console draws of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from serving.contracts.ids import EngineId
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.frames import (
    INTERVAL_NAMES,
    PERCENTILES,
    Frame,
    IntervalSummaries,
    LiveFrame,
    LiveTrial,
    Point,
    TrialFigures,
)
from serving.telemetry.gauges import keep_first, keep_largest

UNREAD = "unread"
_RATIO_DIGITS = 4
_RATE_DIGITS = 1
_REQUEST_DIGITS = 2
_MS_DIGITS = 3
_SECONDS_DIGITS = 6
_NAME_LENGTH = 6


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
        memory_bytes=sum(map(_memory, _of_different_devices(engines))),
        # An engine that began before anything was announced runs version 0, its own defaults.
        tunables_version=min((engine.tunables_version for engine in engines), default=0) or None,
        percentiles=[percentiles_of(window) for window in frame.windows],
        num_waiting_long=sum(engine.num_waiting_long for engine in engines),
        **_step_rates(frame),
        prefix_hit_ratio=_rounded_ratio(frame.prefix_hit_ratio),
        **_outcome_rates(frame),
        # Without an engine there is no memory, of which none were free.
        kv_free_ratio=_ratio(sum(engine.kv_blocks_free for engine in engines), num_blocks) if num_blocks else None,
        num_waiting_long_tokens=_num_waiting_long_tokens(engines),
        waiting_by_priority=_waiting_by_priority(frame),
        refusals_per_second={
            code: round(rate, _REQUEST_DIGITS) for code, rate in keep_largest(frame.refusals_per_second).items()
        },
        utilisation_by_engine=_by_engine(engines, _utilisation, digits=_RATIO_DIGITS),
        memory_by_engine=_by_engine(engines, _memory, digits=None),
        draft_acceptance_ratio=_rounded_ratio(frame.draft_acceptance_ratio),
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
        slo=frame.slo,
        events=frame.events,
        trial=_live_trial_of(frame.trial),
    )


def _live_trial_of(trial: TrialFigures | None) -> LiveTrial | None:
    if trial is None:
        return None
    return LiveTrial(version=trial.version, engine_id=trial.engine_id, since=trial.since)


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


def _num_waiting_long_tokens(engines: Iterable[EngineSnapshot]) -> int | None:
    num_tokens = 0
    for engine in engines:
        if engine.num_waiting_long_tokens is not None:
            num_tokens += engine.num_waiting_long_tokens
        elif engine.num_waiting_long:
            return None
    return num_tokens


def _waiting_by_priority(frame: Frame) -> dict[str, int]:
    waiting: Counter[str] = Counter({UNREAD: frame.num_unread})
    for engine in frame.engines:
        waiting.update(engine.waiting_by_priority)
    return {name: int(count) for name, count in keep_largest(waiting).items()}


def _by_engine(
    engines: Sequence[EngineSnapshot], figure_of: Callable[[EngineSnapshot], float], *, digits: int | None
) -> dict[str, Any]:
    names = _names_of([engine.engine_id for engine in engines])
    figures = keep_first({name: figure_of(engine) for name, engine in zip(names, engines, strict=True)})
    return {name: round(figure, digits) for name, figure in figures.items()}


def _names_of(ids: Sequence[EngineId]) -> list[str]:
    """The ends of ids, by which people tell engines apart: 900 points hold them."""
    ends = [id_.rpartition("-")[2][:_NAME_LENGTH] or id_ for id_ in ids]
    return list(ends) if len(set(ends)) == len(ends) else list(ids)


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, _RATIO_DIGITS) if whole else 0.0


def _rounded_ratio(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, _RATIO_DIGITS)


def _utilisation(engine: EngineSnapshot) -> float:
    return engine.busy_ratio if engine.accelerator_ratio is None else engine.accelerator_ratio


def _of_different_devices(engines: Iterable[EngineSnapshot]) -> list[EngineSnapshot]:
    """One engine for each accelerator, of whose memory all that share it tell alike; and all that have none."""
    devices = {engine.accelerator_id or engine.engine_id: engine for engine in engines}
    return list(devices.values())


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
