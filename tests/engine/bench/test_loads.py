"""Loads on the engine alone: what is played, and what is told of it."""

from __future__ import annotations

import dataclasses

import pytest

from serving.engine.bench.loads import LOADS, QUICK_LOADS, EngineLoad, percentiles_ms, play, submits
from serving.engine.engine import Engine
from tests.engine.bench.scripted import ScriptedRunner

LOAD = EngineLoad(num_requests=6, max_running=2, prompt_tokens=(4, 9), output_tokens=5)


def test_requests_are_the_same_for_a_seed_and_within_the_bounds() -> None:
    first, again, other = submits(LOAD, seed=1), submits(LOAD, seed=1), submits(LOAD, seed=2)
    assert first == again
    assert first != other
    assert len({request.key for request in first}) == 6
    for request in first:
        assert 4 <= len(request.prompt_ids) <= 9
        assert all(1000 <= token_id <= 40_000 for token_id in request.prompt_ids)
        assert request.params.ignore_eos
        assert request.params.max_tokens == 5


def test_the_workloads_are_those_that_peers_are_measured_with() -> None:
    assert dataclasses.asdict(LOADS["w1"]) == {
        "num_requests": 64,
        "max_running": 32,
        "prompt_tokens": (32, 256),
        "output_tokens": 128,
    }
    assert dataclasses.asdict(LOADS["w2"])["prompt_tokens"] == (64, 64)
    assert QUICK_LOADS.keys() == LOADS.keys()


def test_counts_every_token_and_times_it_by_the_clock() -> None:
    runner = ScriptedRunner(fixed_seconds=0.5, token_seconds=0)
    engine = Engine(runner, tunables=LOAD.tunables(), clock=runner.clock)
    figures = play(engine, submits(LOAD, seed=3), clock=runner.clock)
    assert figures.output_tokens == 30
    assert figures.wall_seconds == pytest.approx(0.5 * len(runner.plans))
    assert figures.output_tokens_per_second == pytest.approx(30 / figures.wall_seconds, abs=0.01)
    assert figures.ttft_ms["max"] > figures.ttft_ms["p50"] >= 500
    assert figures.itl_ms == {"p50": 500, "p95": 500, "p99": 500, "max": 500}
    assert max(len(plan.chunks) for plan in runner.plans) == 2


def test_refusal_is_no_measurement() -> None:
    runner = ScriptedRunner(num_blocks=1)
    engine = Engine(runner, tunables=LOAD.tunables(), clock=runner.clock)
    load = dataclasses.replace(LOAD, prompt_tokens=(40, 40))
    with pytest.raises(RuntimeError, match="refused"):
        play(engine, submits(load, seed=1), clock=runner.clock)


def test_a_slow_engine_refuses_nobody_for_waiting() -> None:
    runner = ScriptedRunner(fixed_seconds=60, token_seconds=0)
    engine = Engine(runner, tunables=LOAD.tunables({"prefill_share": 1}), clock=runner.clock)
    assert play(engine, submits(LOAD, seed=1), clock=runner.clock).output_tokens == 30
    assert engine.tunables.max_running == LOAD.max_running


def test_percentiles_are_in_milliseconds_and_none_of_nothing() -> None:
    assert percentiles_ms([0.001, 0.003]) == {"p50": 2.0, "p95": 2.9, "p99": 2.98, "max": 3.0}
    assert percentiles_ms([]) == {}
