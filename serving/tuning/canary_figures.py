"""What each engine did since a canary began, so that the one that tries a version can be told from the rest. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from serving.contracts.ids import EngineId
from serving.contracts.messages import EngineSnapshot

_COUNTERS = ("steps_total", "step_seconds_total", "generated_tokens_total", "preemptions_total")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """One engine since the canary began, or since it started where that was later. `step_ms` is the mean of its steps
    (None: it made none); `num_running` and `num_waiting` are of this moment."""

    engine_id: EngineId
    name: str
    is_canary: bool
    version: int
    step_ms: float | None
    generated_tokens_per_second: float
    num_preemptions: int
    num_running: int
    num_waiting: int


def baseline_of(engines: Iterable[EngineSnapshot]) -> dict[str, dict[str, float]]:
    """What the engines have counted so far, to be kept with a canary that begins."""
    return {engine.engine_id: {name: getattr(engine, name) for name in _COUNTERS} for engine in engines}


def figures_since(
    baseline: Mapping[str, Mapping[str, float]],
    engines: Iterable[EngineSnapshot],
    *,
    canary: EngineId,
    seconds: float,
) -> list[EngineFigures]:
    """The canary's engine first, then the others by name. `seconds` have passed since the canary began."""
    found = [_figures(baseline.get(engine.engine_id, {}), engine, canary, seconds) for engine in engines]
    return sorted(found, key=lambda figures: (not figures.is_canary, figures.name, figures.engine_id))


def _figures(before: Mapping[str, float], engine: EngineSnapshot, canary: EngineId, seconds: float) -> EngineFigures:
    grown = {name: max(0.0, getattr(engine, name) - before.get(name, 0)) for name in _COUNTERS}
    lasted = max(1.0, min(seconds, engine.uptime_seconds))
    num_steps = grown["steps_total"]
    return EngineFigures(
        engine_id=engine.engine_id,
        name=engine.name,
        is_canary=engine.engine_id == canary,
        version=engine.tunables_version,
        step_ms=1000 * grown["step_seconds_total"] / num_steps if num_steps else None,
        generated_tokens_per_second=grown["generated_tokens_total"] / lasted,
        num_preemptions=int(grown["preemptions_total"]),
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
    )
