"""What each engine did since a canary began, so that the one that tries a version can be told from the rest. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from serving.contracts.ids import EngineId
from serving.contracts.messages import EngineSnapshot

_COUNTERS = ("steps_total", "step_seconds_total", "generated_tokens_total", "preemptions_total")
_CLOCKS_DIFFER_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one engine or several did in `seconds`, those of several added up. `step_ms` is the mean of their steps
    (None: they made none), the rates are an engine's."""

    seconds: float = 0.0
    num_steps: int = 0
    step_seconds: float = 0.0
    generated_tokens: int = 0
    num_preemptions: int = 0

    @property
    def step_ms(self) -> float | None:
        return 1000 * self.step_seconds / self.num_steps if self.num_steps else None

    @property
    def generated_tokens_per_second(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds else 0.0

    @property
    def preemptions_per_minute(self) -> float:
        return 60 * self.num_preemptions / self.seconds if self.seconds else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """One engine since the canary began, or since it started where that was later. `num_running` and `num_waiting` are
    of this moment."""

    engine_id: EngineId
    name: str
    is_canary: bool
    version: int
    work: Work
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
    found = [_figures(baseline.get(engine.engine_id), engine, canary, seconds) for engine in engines]
    return sorted(found, key=lambda figures: (not figures.is_canary, figures.name, figures.engine_id))


def work_of(engines: Iterable[EngineFigures]) -> Work:
    """What they did together: sums, of which the mean step and the rates of one engine follow."""
    works = [engine.work for engine in engines]
    return Work(
        seconds=sum(work.seconds for work in works),
        num_steps=sum(work.num_steps for work in works),
        step_seconds=sum(work.step_seconds for work in works),
        generated_tokens=sum(work.generated_tokens for work in works),
        num_preemptions=sum(work.num_preemptions for work in works),
    )


def _figures(
    before: Mapping[str, float] | None, engine: EngineSnapshot, canary: EngineId, seconds: float
) -> EngineFigures:
    return EngineFigures(
        engine_id=engine.engine_id,
        name=engine.name,
        is_canary=engine.engine_id == canary,
        version=engine.tunables_version,
        work=_work_since(before, engine, seconds),
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
    )


def _work_since(before: Mapping[str, float] | None, engine: EngineSnapshot, seconds: float) -> Work:
    if before is None and engine.uptime_seconds > seconds + _CLOCKS_DIFFER_SECONDS:
        return Work()  # it was not heard of when the canary began: what it had counted by then is unknown
    grown = {name: max(0.0, getattr(engine, name) - (before or {}).get(name, 0)) for name in _COUNTERS}
    return Work(
        seconds=max(1.0, min(seconds, engine.uptime_seconds)),
        num_steps=int(grown["steps_total"]),
        step_seconds=grown["step_seconds_total"],
        generated_tokens=int(grown["generated_tokens_total"]),
        num_preemptions=int(grown["preemptions_total"]),
    )
