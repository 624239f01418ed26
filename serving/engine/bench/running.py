"""Measure and tell: each function plays its part on a model runner and returns what is printed as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.contracts.tunables import Tunables
from serving.engine.bench.decode_steps import DecodeStep, breakdown_ms, measure_decode_steps
from serving.engine.bench.floors import DecoderCost, floor_ms, limit_tokens_per_second
from serving.engine.bench.limits import Limits, median_limits
from serving.engine.bench.loads import EngineLoad, LoadFigures, play, submits
from serving.engine.engine import Engine
from serving.engine.plan import Runner

BATCHES = (1, 8, 32)
CONTEXT_TOKENS = 200
NUM_STEPS = 40
QUICK_NUM_STEPS = 6

MeasureLimits = Callable[[], Limits]


def warm_up(runner: Runner) -> None:
    """Let everything that is made at its first use be made."""
    load = EngineLoad(num_requests=2, max_running=2, prompt_tokens=(32, 64), output_tokens=8)
    play(Engine(runner, tunables=Tunables()), submits(load, seed=0))


def bench_load(
    runner: Runner,
    load: EngineLoad,
    cost: DecoderCost,
    measure_limits: MeasureLimits,
    *,
    repeats: int,
    tunables: Mapping[str, Any],
) -> dict[str, Any]:
    """Play `load` `repeats` times, each with prompts of its own. Medians, every repeat's figures, and the ratio to what
    the limits measured in between allow."""
    limits: list[Limits] = []
    figures: list[LoadFigures] = []
    for repeat in range(repeats):
        limits.append(measure_limits())
        engine = Engine(runner, tunables=load.tunables(tunables))
        figures.append(play(engine, submits(load, seed=1234 + repeat)))
    middle = median_limits(limits)
    rate = statistics.median(each.output_tokens_per_second for each in figures)
    limit_rate = limit_tokens_per_second(cost, middle, load)
    return {
        "output_tokens_per_second": rate,
        "ttft_ms": _medians([each.ttft_ms for each in figures]),
        "itl_ms": _medians([each.itl_ms for each in figures]),
        "step_ms": _medians([each.step_ms for each in figures]),
        "limit_output_tokens_per_second": limit_rate,
        "ratio_to_limit": round(rate / limit_rate, 3),
        "repeats": [dataclasses.asdict(each) for each in figures],
        **dataclasses.asdict(middle),
    }


def bench_steps(
    runner: Runner, cost: DecoderCost, measure_limits: MeasureLimits, *, repeats: int, num_steps: int = NUM_STEPS
) -> dict[str, Any]:
    """Time decode steps at each batch size in turn, `repeats` times round: their median over all rounds, the floor that
    the bandwidth measured in between sets, and where a step's time goes."""
    limits: list[Limits] = []
    steps: dict[int, list[DecodeStep]] = {batch: [] for batch in BATCHES}
    rounds: list[dict[str, float]] = []
    for repeat in range(repeats):
        limits.append(measure_limits())
        for batch in BATCHES:
            steps[batch] += measure_decode_steps(
                runner, batch=batch, context_tokens=CONTEXT_TOKENS, num_steps=num_steps, seed=99 + repeat
            )
        rounds.append({str(batch): _median_ms(steps[batch][-num_steps:]) for batch in BATCHES})
    middle = median_limits(limits)
    step_ms = {str(batch): _median_ms(steps[batch]) for batch in BATCHES}
    floors = {str(batch): floor_ms(cost, middle, batch=batch, context_tokens=CONTEXT_TOKENS) for batch in BATCHES}
    return {
        "step_ms": step_ms,
        "floor_ms": floors,
        "ratio_to_floor": {name: round(step_ms[name] / floors[name], 3) for name in step_ms},
        "breakdown_ms": {str(batch): breakdown_ms(steps[batch]) for batch in BATCHES},
        "context_tokens": CONTEXT_TOKENS,
        "repeats": rounds,
        **dataclasses.asdict(middle),
    }


def _median_ms(steps: Sequence[DecodeStep]) -> float:
    return round(statistics.median(step.total_seconds for step in steps) * 1e3, 4)


def _medians(repeats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each named figure."""
    return {name: round(statistics.median(each[name] for each in repeats), 3) for name in repeats[0]}
