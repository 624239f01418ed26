"""What steps cost, found again from steps that cost it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from serving.contracts import keys
from serving.contracts.errors import InvalidValue, Unavailable
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import encode
from serving.contracts.steps import ROW_FIELDS, StepBatch, StepRow, encode_steps
from serving.lab.costs import services
from serving.lab.costs.default import DEFAULT_COST
from serving.lab.costs.fitting import Sample, fit_cost, samples_of
from serving.lab.costs.model import CostModel, StepWork
from serving.lab.costs.nonnegative import nonnegative_least_squares
from serving.lab.costs.store import latest_cost
from serving.lab.models import FittedCost
from serving.tuning.services import ensure_pool
from tests.telemetry.conftest import snapshot

TRUE = CostModel(
    step_seconds=0.006,
    prefill_token_seconds=0.0004,
    prefill_position_seconds=2e-8,
    decoding_seconds=0.0011,
    context_token_seconds=4e-7,
)


def sample(rng: np.random.Generator, *, noise: float, prefill: bool) -> Sample:
    num_decoding = int(rng.integers(0 if prefill else 1, 24))
    tokens = int(rng.integers(1, 400)) if prefill else 0
    positions = tokens * int(rng.integers(1, 1500))
    context = num_decoding * int(rng.integers(10, 1500))
    work = StepWork(
        num_prefill_tokens=tokens,
        num_prefill_positions=positions,
        num_decoding=num_decoding,
        num_context_tokens=context,
    )
    factor = float(np.exp(noise * rng.standard_normal()))
    return Sample(TRUE.seconds(work) * factor, tokens, positions, num_decoding, context)


def samples(count: int, *, noise: float = 0.0, seed: int = 1) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [sample(rng, noise=noise, prefill=index % 4 == 0) for index in range(count)]


def row(step: int, **changes: Any) -> StepRow:
    usual = dict.fromkeys(ROW_FIELDS, 0) | {
        "is_static": False,
        "failed": False,
        "others": [],
        "ended": [],
        "waiting": [],
    }
    values = {
        "step": step,
        "total_ms": 10.0,
        "unix_seconds": step * 0.011,
        "decoding": [0, 1],
        "num_decode_tokens": 2,
        "num_running": 2,
    }
    return StepRow(**usual | values | {"num_context_tokens": 50} | changes)


@given(
    rows=st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=4, max_size=12),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_no_nearby_solution_is_better(rows: list[list[float]], seed: int) -> None:
    matrix = np.array(rows)
    rng = np.random.default_rng(seed)
    wanted = rng.standard_normal(len(rows))
    found = nonnegative_least_squares(matrix, wanted)
    assert (found >= 0).all()
    best = np.linalg.norm(matrix @ found - wanted)
    for _ in range(60):
        other = np.maximum(0, found + rng.standard_normal(3) * 0.05)
        assert np.linalg.norm(matrix @ other - wanted) >= best - 1e-7


def test_terms_without_noise_are_found_again() -> None:
    found = fit_cost(samples(400), request_seconds=0.01)
    for name in ("step_seconds", "prefill_token_seconds", "prefill_position_seconds", "decoding_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    assert found.context_token_seconds == pytest.approx(TRUE.context_token_seconds, rel=1e-3)
    assert (found.source, found.request_seconds) == ("fitted", 0.01)
    assert found.fit is not None
    assert (found.fit.num_steps, found.fit.num_held_back) == (320, 80)
    assert found.fit.median_error < 1e-6


def test_noise_and_outliers_move_it_little() -> None:
    noisy = samples(1200, noise=0.1)
    spoiled = [Sample(each.seconds * (8 if index % 19 == 0 else 1), *_rest(each)) for index, each in enumerate(noisy)]
    found = fit_cost(spoiled, request_seconds=0.0)
    work = StepWork(num_decoding=12, num_context_tokens=6000)
    # One step of nineteen takes eight times as long, of which twice counts.
    assert TRUE.seconds(work) < found.seconds(work) < 1.1 * TRUE.seconds(work)
    assert found.fit is not None
    assert 0.03 < found.fit.median_error < 0.15
    assert abs(found.fit.total_error) < 0.5


def test_what_disturbs_many_steps_a_little_counts_in_their_sum() -> None:
    """Durations on a busy machine are skewed: their mean, on which capacity depends, is above their median."""
    rng = np.random.default_rng(3)
    skewed = [Sample(each.seconds * float(1 + rng.exponential(0.15)), *_rest(each)) for each in samples(2000)]
    found = fit_cost(skewed, request_seconds=0.0)
    assert found.fit is not None
    assert abs(found.fit.total_error) < 0.02
    work = StepWork(num_decoding=12, num_context_tokens=6000)
    assert found.seconds(work) == pytest.approx(1.15 * TRUE.seconds(work), rel=0.02)


@pytest.mark.parametrize(
    ("given_samples", "words"),
    [
        (samples(150), "150 recorded"),
        ([each for each in samples(2000) if each.num_prefill_tokens], "0 that only decode"),
        ([each for each in samples(400) if not each.num_prefill_tokens], "0 with prefill"),
        (
            [
                Sample(each.seconds, *_fields)
                for each, _fields in ((each, (each.num_prefill_tokens, 0, 3, 30)) for each in samples(400))
            ],
            "batches of {3} alone",
        ),
    ],
)
def test_steps_that_cannot_tell_are_refused_with_what_is_missing(given_samples: list[Sample], words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        fit_cost(given_samples, request_seconds=0.0)
    assert words in caught.value.message


def test_what_an_engine_does_between_two_steps_is_part_of_their_cost() -> None:
    found = samples_of([row(1), row(2), row(5)])
    assert [round(each.seconds, 6) for each in found] == [0.011, 0.01, 0.01]
    nobody_goes_on = samples_of([row(1, num_running=0), row(2)])
    assert round(nobody_goes_on[0].seconds, 6) == 0.01


def test_steps_that_say_nothing_of_their_cost_are_left_out() -> None:
    rows = [
        row(1, failed=True),
        row(3, num_context_tokens=0),
        row(5, num_decode_tokens=7),
        row(7, total_ms=0.0),
        row(9),
    ]
    assert len(samples_of(rows)) == 1


def test_what_no_step_tells_of_is_expected_as_the_default_model_has_it() -> None:
    """No prefill looks back and no context is longer than a token: what either costs is told by nothing."""
    alike = []
    for each in samples(800, noise=0.02):
        tokens, _, num_decoding, _ = _rest(each)
        work = StepWork(num_prefill_tokens=tokens, num_decoding=num_decoding, num_context_tokens=num_decoding)
        alike.append(Sample(TRUE.seconds(work), tokens, 0, num_decoding, num_decoding))
    found = fit_cost(alike, request_seconds=0.0)
    assert found.fit is not None
    assert found.fit.median_error < 0.01
    assert found.fit.assumed == ("prefill_position_seconds", "context_token_seconds")
    assert found.decoding_seconds == pytest.approx(TRUE.decoding_seconds, rel=0.05)
    for name in found.fit.assumed:
        assert getattr(found, name) == pytest.approx(getattr(DEFAULT_COST, name), rel=0.5), name


@pytest.mark.parametrize("seed", range(4))
def test_terms_that_rise_together_are_not_blown_up_by_chance(seed: int) -> None:
    """Short prompts of which positions rise with tokens, contexts with who decodes, on a machine that others use."""
    rng = np.random.default_rng(seed)
    slowness, seen = 1.0, []
    for number in range(1200):
        slowness = float(np.clip(slowness * np.exp(0.05 * rng.standard_normal()), 0.7, 1.6))
        num_decoding = 1 if number < 700 else 6
        tokens = int(rng.integers(60, 200)) if number % 40 == 0 else 0
        positions, context = tokens * tokens // 2, num_decoding * int(rng.integers(100, 300))
        work = StepWork(
            num_prefill_tokens=tokens,
            num_prefill_positions=positions,
            num_decoding=num_decoding,
            num_context_tokens=context,
        )
        seen.append(Sample(TRUE.seconds(work) * slowness, tokens, positions, num_decoding, context))
    found = fit_cost(seen, request_seconds=0.0)
    for name in ("prefill_token_seconds", "prefill_position_seconds", "decoding_seconds", "context_token_seconds"):
        assert 0.25 < getattr(found, name) / getattr(TRUE, name) < 4, name


def test_a_term_that_steps_show_to_be_nothing_is_not_assumed() -> None:
    free = msgspec.structs.replace(TRUE, context_token_seconds=0.0)
    rng = np.random.default_rng(5)
    seen = []
    for each in samples(800):
        tokens, positions, num_decoding, context = _rest(each)
        work = StepWork(
            num_prefill_tokens=tokens,
            num_prefill_positions=positions,
            num_decoding=num_decoding,
            num_context_tokens=context,
        )
        # A little below what it is without any context: no model without negative terms comes nearer than 0.
        seconds = free.seconds(work) - 2e-8 * context
        seen.append(Sample(seconds * float(np.exp(0.01 * rng.standard_normal())), *_rest(each)))
    found = fit_cost(seen, request_seconds=0.0)
    assert found.fit is not None
    assert found.fit.assumed == ()
    assert found.context_token_seconds == 0


@pytest.fixture
def redis(valkey: str) -> Any:
    with Redis.from_url(valkey) as client:
        yield client


def publish(redis: Redis, given_samples: list[Sample], *, first: int = 0) -> None:
    engine = snapshot("one")
    redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    redis.zadd(keys.engines(PoolName("default")), {engine.engine_id: 1})
    rows = [
        row(
            first + 2 * number,
            total_ms=each.seconds * 1000,
            num_prefill_tokens=each.num_prefill_tokens,
            num_prefill_positions=each.num_prefill_positions,
            decoding=list(range(each.num_decoding)),
            num_decode_tokens=each.num_decoding,
            num_context_tokens=each.num_context_tokens,
        )
        for number, each in enumerate(given_samples)
    ]
    batch = StepBatch(EngineId("one"), [], rows, 0)
    redis.xadd(keys.steps(EngineId("one")), {keys.FIELD: encode_steps(batch)})


def test_a_pool_is_fitted_once_there_are_enough_steps(transactional_db: None, redis: Redis) -> None:
    ensure_pool("default", "a-model")
    assert latest_cost("default")[0] == DEFAULT_COST
    with pytest.raises(Unavailable, match="no engine of pool default lives"):
        services.fit_pool("default", redis=redis)
    services.refresh_costs(redis)
    publish(redis, samples(50))
    services.refresh_costs(redis)
    assert latest_cost("default")[0] == DEFAULT_COST
    publish(redis, samples(400))
    services.refresh_costs(redis)
    cost, envelope = latest_cost("default")
    assert cost.source == "fitted"
    assert cost.step_seconds == pytest.approx(TRUE.step_seconds, rel=0.05)
    assert envelope.num_blocks == snapshot("one").kv_blocks_total


@pytest.mark.heavy
def test_steps_of_further_kinds_lead_to_a_fit_and_more_of_the_same_do_not(transactional_db: None, redis: Redis) -> None:
    ensure_pool("default", "a-model")
    short = 4 * [each for each in samples(1000) if each.num_decoding < 8 and each.num_prefill_tokens < 64]
    publish(redis, short)
    services.refresh_costs(redis)
    assert FittedCost.objects.count() == 1
    publish(redis, short, first=10_000)
    services.refresh_costs(redis)
    assert FittedCost.objects.count() == 1
    publish(redis, samples(300), first=20_000)
    services.refresh_costs(redis)
    assert FittedCost.objects.count() == 2
    cost, _ = latest_cost("default")
    assert cost.fit is not None
    assert cost.fit.num_kinds > 4


@pytest.mark.heavy
def test_steps_that_take_longer_than_fitted_lead_to_a_fit(transactional_db: None, redis: Redis) -> None:
    ensure_pool("default", "a-model")
    publish(redis, samples(1000))
    services.refresh_costs(redis)
    slower = [Sample(1.6 * each.seconds, *_rest(each)) for each in samples(1000)]
    for number in range(1, 7):
        publish(redis, slower, first=10_000 * number)
        services.refresh_costs(redis)
        assert FittedCost.objects.count() > 1
    cost, _ = latest_cost("default")
    work = StepWork(num_decoding=12, num_context_tokens=6000)
    assert cost.seconds(work) == pytest.approx(1.6 * TRUE.seconds(work), rel=0.1)


def test_what_was_seen_once_is_not_crowded_out_by_what_is_seen_often(transactional_db: None, redis: Redis) -> None:
    ensure_pool("default", "a-model")
    publish(redis, samples(400))
    services.refresh_costs(redis)
    redis.delete(keys.steps(EngineId("one")))
    alone = Sample(TRUE.seconds(StepWork(num_decoding=1, num_context_tokens=40)), 0, 0, 1, 40)
    publish(redis, [alone] * 1200, first=10_000)
    cost, _ = services.fit_pool("default", redis=redis)
    assert cost.decoding_seconds == pytest.approx(TRUE.decoding_seconds, rel=0.05)
    assert cost.prefill_token_seconds == pytest.approx(TRUE.prefill_token_seconds, rel=0.05)


def test_other_engines_begin_anew(transactional_db: None, redis: Redis) -> None:
    ensure_pool("default", "a-model")
    publish(redis, samples(400))
    services.refresh_costs(redis)
    redis.delete(keys.steps(EngineId("one")))
    engine = snapshot("one", model="another-model")
    redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    stock, new = services.take_in_steps("default", [engine], redis=redis)
    assert (stock.samples, new) == ([], [])


def _rest(each: Sample) -> tuple[int, int, int, int]:
    return each.num_prefill_tokens, each.num_prefill_positions, each.num_decoding, each.num_context_tokens
