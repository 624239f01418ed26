"""What the gateway tells of its requests reaches the books in Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from serving.contracts.ids import OwnerId, PoolName, RequestId
from serving.gateway.observer import Ended
from serving.telemetry.meter import RequestMeter
from serving.telemetry.selectors import pool_snapshot

POOL = PoolName("default")


async def test_books_balance_over_every_outcome(valkey: str) -> None:
    async with Redis.from_url(valkey) as redis:
        meter = RequestMeter(redis, owner_id=OwnerId("owner"), pools=[POOL])
        meter.start()
        outcomes = {"finished:stop": True, "aborted": True, "refused:queue_full": False, "failed:engine_error": True}
        for outcome, was_scheduled in outcomes.items():
            meter.submitted(POOL)
            if was_scheduled:
                meter.scheduled(POOL, queue_seconds=0.1)
                meter.first_token(POOL, ttft_seconds=0.2)
                meter.token_gap(POOL, itl_seconds=0.01)
            meter.ended(
                Ended(
                    request_id=RequestId(outcome),
                    pool=POOL,
                    outcome=outcome,
                    was_scheduled=was_scheduled,
                    e2e_seconds=1.0,
                    prompt_tokens=3,
                    completion_tokens=5,
                )
            )
        meter.submitted(POOL)
        meter.scheduled(POOL, queue_seconds=0.1)
        meter.submitted(POOL)
        await meter.stop()
        booked = (await pool_snapshot(redis, POOL))["outcomes"]
    assert booked["submitted"] == 6
    assert {name: booked[name] for name in outcomes} == dict.fromkeys(outcomes, 1)
    assert (booked["running"], booked["waiting"]) == (1, 1)
    assert (booked["prompt_tokens"], booked["completion_tokens"]) == (12, 20)
