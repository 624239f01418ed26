"""Which engines live, and how fast they are."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId
from serving.telemetry.engines import TokenRates, live_engines
from serving.telemetry.frames import StepRates
from tests.telemetry.actions import beat
from tests.telemetry.conftest import POOL, snapshot


async def test_lists_the_engines_whose_heart_beats(redis: Redis) -> None:
    engines = [snapshot("engine-1", num_running=3), snapshot("engine-2")]
    for engine in reversed(engines):
        await beat(redis, engine)
    assert await live_engines(redis, POOL) == engines


async def test_forgets_an_engine_that_is_long_dead_but_none_that_just_missed_a_beat(redis: Redis) -> None:
    seconds, _ = await redis.time()
    await redis.zadd(keys.engines(POOL), {"dead": seconds - 60, "late": seconds - 5})
    for name in ("dead", "late"):
        await redis.xadd(keys.control(EngineId(name)), {keys.FIELD: b"x"})
    assert await live_engines(redis, POOL) == []
    assert await redis.zrange(keys.engines(POOL), 0, -1) == [b"late"]
    assert await redis.exists(keys.control(EngineId("dead"))) == 0
    assert await redis.exists(keys.control(EngineId("late"))) == 1


async def test_leaves_out_a_heartbeat_that_it_does_not_understand(redis: Redis) -> None:
    await beat(redis, snapshot("engine-1"))
    await redis.set(keys.heartbeat(EngineId("engine-0")), b"\xc1 from another time")
    await redis.zadd(keys.engines(POOL), {"engine-0": 1e12})
    assert [engine.engine_id for engine in await live_engines(redis, POOL)] == ["engine-1"]


def test_rates_are_differences_over_the_engines_own_time() -> None:
    rates = TokenRates()
    for second in range(20):
        prompts, tokens = 50 * second, 200 * second
        rates.add(
            [
                snapshot("a", uptime_seconds=100 + second, prompt_tokens_total=prompts, generated_tokens_total=tokens),
                snapshot("b", uptime_seconds=7 + second, generated_tokens_total=10 * second),
            ]
        )
    assert rates.prompt_tokens_per_second == pytest.approx(50)
    assert rates.generated_tokens_per_second == pytest.approx(210)


def test_rate_falls_to_nought_within_seconds_of_the_last_token() -> None:
    rates = TokenRates()
    for second in range(20):
        rates.add([snapshot("a", uptime_seconds=second, generated_tokens_total=100 * min(second, 10))])
    assert rates.generated_tokens_per_second == 0


def test_engine_seen_once_or_no_more_has_no_rate() -> None:
    rates = TokenRates()
    rates.add([snapshot("a", generated_tokens_total=1_000_000)])
    rates.add([snapshot("a", generated_tokens_total=1_000_000)])  # the same heartbeat, read again
    assert rates.generated_tokens_per_second == 0
    rates.add([snapshot("a", uptime_seconds=11, generated_tokens_total=1_000_100)])
    assert rates.generated_tokens_per_second == pytest.approx(100)
    rates.add([])
    assert rates.generated_tokens_per_second == 0


def test_prefix_hits_are_a_share_of_what_started_lately() -> None:
    rates = TokenRates()
    assert rates.prefix_hit_ratio is None
    for second in range(20):
        rates.add(
            [
                snapshot("a", uptime_seconds=second, prefix_query_tokens_total=300 * second),
                snapshot(
                    "b",
                    uptime_seconds=50 + second,
                    prefix_query_tokens_total=1000 + 100 * second,
                    prefix_hit_tokens_total=1000 + 80 * second,
                ),
            ]
        )
    assert rates.prefix_hit_ratio == pytest.approx(0.2)
    for second in range(20, 30):
        rates.add([snapshot("a", uptime_seconds=second, prefix_query_tokens_total=5700)])
    assert rates.prefix_hit_ratio is None


def test_guesses_kept_are_a_share_of_those_made_lately() -> None:
    rates = TokenRates()
    assert rates.draft_acceptance_ratio is None
    for second in range(20):
        drafted = {"drafted_tokens_total": 1000 + 30 * second, "accepted_tokens_total": 1000 + 20 * second}
        rates.add(
            [
                snapshot("a", uptime_seconds=second, drafted_tokens_total=50 * second),
                snapshot("b", uptime_seconds=50 + second, **drafted),
            ]
        )
    assert rates.draft_acceptance_ratio == pytest.approx(0.25)
    for second in range(20, 30):
        rates.add([snapshot("a", uptime_seconds=second, drafted_tokens_total=950)])
    assert rates.draft_acceptance_ratio is None


def test_steps_of_the_last_seconds_are_told_over_all_engines() -> None:
    rates = TokenRates()
    assert rates.steps == StepRates()
    for second in range(20):
        fast = {"prefill_tokens_total": 600 * second, "decode_tokens_total": 80 * second, "step_seconds_total": second}
        rates.add(
            [
                snapshot("a", uptime_seconds=second, steps_total=30 * second, preemptions_total=second, **fast),
                snapshot("b", uptime_seconds=second, steps_total=10 * second, step_seconds_total=second),
            ]
        )
    assert rates.steps == StepRates(
        prefill_tokens_per_step=15.0, decode_tokens_per_step=2.0, step_ms=50.0, preemptions_per_second=1.0
    )
    # At rest, there are no steps to tell of.
    for second in range(20, 30):
        rates.add([snapshot("a", uptime_seconds=second, steps_total=570, preemptions_total=19, step_seconds_total=19)])
    assert rates.steps == StepRates()
