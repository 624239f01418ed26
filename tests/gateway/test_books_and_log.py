"""Case C89: what was counted, what was logged and what was really generated agree, whoever ended a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.gateway.observer import Ended
from serving.telemetry.meter import RequestMeter
from serving.telemetry.request_log import decode_logged
from serving.telemetry.selectors import pool_snapshot
from tests.gateway.harness import POOL, Harness, RunningWorker, eventually, read, read_until_error


async def test_aborted_and_finished_requests_are_in_the_books_in_the_log_and_in_the_sums(
    valkey: str, start_worker: Callable[..., RunningWorker], start_gateway: Callable[..., Any]
) -> None:
    running, harness = start_worker(), await start_gateway()
    await eventually(lambda: bool(harness.gateway.pools()[0].has_engines))
    script = harness.tokens("one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve")
    running.runner.scripts.update(dict.fromkeys(range(12), script))
    running.runner.failing_seeds.add(11)
    closed = [harness.ask(seed) for seed in range(5)]
    whole = [harness.ask(seed) for seed in range(5, 10)]
    failing = harness.ask(11)
    for stream in closed:
        await anext(stream)
        await stream.aclose()
    for stream in whole:
        await read(stream)
    await read_until_error(failing)
    async with Redis.from_url(valkey) as redis:
        meter = RequestMeter(redis, owner_id=OwnerId("owner"), pools=[POOL])
        retell(harness, meter)
        await meter.stop()
        booked = (await pool_snapshot(redis, POOL))["outcomes"]
        entries = await redis.xrange(keys.request_log())
    records = [decode_logged(fields[keys.FIELD]) for _, fields in entries]
    outcomes = Counter(record.outcome + (f":{record.code}" if record.code else "") for record in records)
    assert outcomes == {"finished:stop": 5, "aborted": 5, "failed:engine_error": 1}
    assert {name: booked[name] for name in outcomes} == outcomes
    assert booked["submitted"] == len(records) == 11
    assert (booked["waiting"], booked["running"]) == (0, 0)
    assert booked["prompt_tokens"] == sum(record.prompt_tokens for record in records)
    assert booked["completion_tokens"] == sum(record.completion_tokens for record in records)
    assert len(harness.observer.named("first_token")) == sum(record.ttft_seconds is not None for record in records)
    assert booked["slo_met"] == sum(Ended(**facts).meets_ttft for facts in harness.observer.named("ended")) == 5


def retell(harness: Harness, meter: RequestMeter) -> None:
    """What the gateway told, in its order."""
    for name, facts in harness.observer.calls:
        if name == "ended":
            meter.ended(Ended(**facts))
        else:
            getattr(meter, name)(POOL, **facts)
