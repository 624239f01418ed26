"""Decode steps: what is timed, and that the parts are the whole."""

from __future__ import annotations

import pytest

from serving.engine.bench.decode_steps import PHASES, DecodeStep, breakdown_ms, measure_decode_steps
from serving.engine.bench.floors import DecoderCost
from serving.engine.bench.limits import Limits
from serving.engine.bench.running import bench_load, bench_steps
from tests.engine.bench.scripted import ScriptedRunner
from tests.engine.bench.test_loads import LOAD

COST = DecoderCost(weight_bytes=1_000_000_000, kv_bytes_per_token=1_000_000, layer_weights=10**9, output_weights=10**8)
LIMITS = [Limits(bandwidth_gb_per_second=each, matmul_gflops=1000) for each in (10.0, 20.0, 40.0)]


def test_every_timed_step_decodes_the_whole_batch_at_the_wanted_context() -> None:
    runner = ScriptedRunner()
    steps = measure_decode_steps(runner, batch=8, context_tokens=200, num_steps=30, seed=1, clock=runner.clock)
    assert [step.num_decoding for step in steps] == [8] * 30
    timed = runner.plans[-30:]
    contexts = [chunk.end for plan in timed for chunk in plan.chunks]
    assert sum(contexts) / len(contexts) == pytest.approx(200, rel=0.02)
    assert all(step.total_seconds == pytest.approx(0.018) for step in steps)


def test_phases_sum_to_the_step_and_attention_is_taken_out_of_the_forward_pass() -> None:
    runner = ScriptedRunner(fixed_seconds=0.02, token_seconds=0)
    steps = measure_decode_steps(runner, batch=2, context_tokens=50, num_steps=4, seed=1, clock=runner.clock)
    for step in steps:
        assert tuple(step.phases) == PHASES
        assert sum(step.phases.values()) == pytest.approx(step.total_seconds)
        assert step.phases["linear"] == pytest.approx(0.02 * (0.8 - 0.25))
        assert step.phases["attention"] == pytest.approx(0.02 * 0.25)


def test_a_batch_that_the_cache_cannot_hold_is_no_measurement() -> None:
    runner = ScriptedRunner(num_blocks=8)
    with pytest.raises(RuntimeError, match="does not fit"):
        measure_decode_steps(runner, batch=8, context_tokens=200, num_steps=4, seed=1, clock=runner.clock)


def test_breakdown_sums_to_a_typical_step_whatever_the_outliers() -> None:
    typical = [_step(0.010 + 0.0001 * index) for index in range(9)]
    breakdown = breakdown_ms([*typical, _step(5.0), _step(0.001), _step(7.0)])
    assert breakdown["step"] == pytest.approx(sum(breakdown[name] for name in PHASES))
    assert breakdown["step"] == pytest.approx(10.4, abs=0.3)


def test_steps_are_told_by_batch_beside_the_floor_of_the_same_run() -> None:
    measured = iter(LIMITS)
    told = bench_steps(ScriptedRunner(), COST, lambda: next(measured), repeats=3, num_steps=4)
    for name in ("step_ms", "floor_ms", "ratio_to_floor", "breakdown_ms"):
        assert list(told[name]) == ["1", "8", "32"]
    assert told["bandwidth_gb_per_second"] == 20
    assert told["floor_ms"]["8"] == pytest.approx((1e9 + 8 * 200 * 1e6) / 20e9 * 1e3)
    assert len(told["repeats"]) == 3
    assert told["ratio_to_floor"]["1"] == pytest.approx(told["step_ms"]["1"] / told["floor_ms"]["1"], abs=0.001)


def test_load_is_told_as_medians_beside_the_limit_of_the_same_run() -> None:
    measured = iter(LIMITS)
    told = bench_load(ScriptedRunner(), LOAD, COST, lambda: next(measured), repeats=3, tunables={})
    rates = sorted(each["output_tokens_per_second"] for each in told["repeats"])
    assert told["output_tokens_per_second"] == rates[1]
    assert told["bandwidth_gb_per_second"] == 20
    assert told["ratio_to_limit"] == pytest.approx(rates[1] / told["limit_output_tokens_per_second"], abs=0.001)
    assert {"ttft_ms", "itl_ms", "step_ms", "matmul_gflops"} <= told.keys()


def _step(seconds: float) -> DecodeStep:
    return DecodeStep(1, seconds, {name: seconds / len(PHASES) for name in PHASES})
