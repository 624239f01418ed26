"""From the gateway's account of a request to the stream: what is told and left out, and what a silent Redis costs."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.contracts.messages import Span
from serving.contracts.sampling import Grammar, SamplingParams
from serving.gateway.observer import KeptTexts
from serving.telemetry import request_log
from serving.telemetry.meter import RequestMeter
from serving.telemetry.request_log import LoggedRequest, RequestLog, decode_logged, record_of
from serving.telemetry.selectors import pool_snapshot
from tests.telemetry.logged import POOL, ended

SPANS = (Span("prefill", 100.0, 400.0, 14, 3), Span("decode", 500.0, 1500.0, 19, 3))


def the_log(**options: Any) -> RequestLog:
    return RequestLog(models={POOL: "tiny"}, wall_clock=lambda: 1_000_000.0, **options)


async def told(redis: Redis) -> list[LoggedRequest]:
    """What the stream holds, in its order."""
    return [decode_logged(fields[keys.FIELD]) for _, fields in await redis.xrange(keys.request_log())]


async def test_a_request_is_told_with_all_that_its_record_says(redis: Redis) -> None:
    log = the_log()
    params = SamplingParams(
        max_tokens=50,
        seed=9,
        temperature=0.5,
        logit_bias=((1, 2.0), (3, 4.0)),
        stop_token_ids=tuple(range(40)),
        grammar=Grammar("regex", "a secret pattern"),
    )
    log.note(ended(params=params, num_stop_strings=2, priority=5, spans=SPANS, tunables_version=4))
    await log.publish(redis)
    (record,) = await told(redis)
    assert record == LoggedRequest(
        request_id=record.request_id,
        pool=POOL,
        model="tiny",
        tenant="acme",
        tenant_id=7,
        key_prefix="0123456789ab",
        endpoint="chat",
        is_streamed=True,
        arrived_unix_seconds=999_998.0,
        outcome="finished",
        code="stop",
        prompt_tokens=30,
        cached_tokens=16,
        completion_tokens=20,
        queue_seconds=0.1,
        ttft_seconds=0.5,
        itl_seconds=0.075,
        e2e_seconds=2.0,
        num_attempts=1,
        engine="engine-1",
        tunables_version=4,
        params={
            "max_tokens": 50,
            "seed": 9,
            "temperature": 0.5,
            "logit_bias": 2,
            "stop_token_ids": list(range(16)),
            "grammar": "regex",
            "stop_strings": 2,
            "priority": 5,
        },
        spans=SPANS,
    )


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("finished:length", ("finished", "length")),
        ("aborted", ("aborted", "")),
        ("refused:queue_full", ("refused", "queue_full")),
        ("failed:engine_error", ("failed", "engine_error")),
    ],
)
async def test_every_end_is_told_apart(redis: Redis, outcome: str, expected: tuple[str, str]) -> None:
    log = the_log()
    log.note(ended(outcome=outcome))
    await log.publish(redis)
    (record,) = await told(redis)
    assert (record.outcome, record.code) == expected


async def test_the_books_and_the_log_agree(redis: Redis) -> None:
    meter = RequestMeter(redis, owner_id=OwnerId("owner"), pools=[POOL], models={POOL: "tiny"})
    outcomes = ["finished:stop"] * 5 + ["aborted"] * 5 + ["refused:queue_full"] * 2 + ["failed:engine_error"]
    for index, outcome in enumerate(outcomes):
        meter.submitted(POOL)
        is_met = index == 0
        meter.ended(ended(f"req_{index}", outcome=outcome, was_scheduled=False, meets_ttft=is_met, meets_itl=index < 3))
    await meter.stop()
    records = await told(redis)
    booked = (await pool_snapshot(redis, POOL))["outcomes"]
    names = [record.outcome + (":" if record.code else "") + record.code for record in records]
    assert {name: names.count(name) for name in names} == {name: booked[name] for name in set(outcomes)}
    assert booked["submitted"] == len(records)
    assert booked["prompt_tokens"] == sum(record.prompt_tokens for record in records)
    assert booked["slo_met"] == 1


async def test_texts_are_told_where_they_may_be_and_cut_where_they_are_long(redis: Redis) -> None:
    log = the_log()
    log.note(ended("kept", texts=KeptTexts(lambda: "é" * 40_000, ("one", "two"))))
    secret = "s" * 43
    log.note(ended("single", texts=KeptTexts(lambda: f"my key is fp-0123456789ab-{secret}", ("an answer",))))
    log.note(ended("not kept"))
    await log.publish(redis)
    kept, single, other = await told(redis)
    assert kept.prompt_text == "é" * 32_768
    assert kept.output_text == "[choice 0]\none\n\n[choice 1]\ntwo"
    assert (single.prompt_text, single.output_text) == ("my key is fp-0123456789ab-…", "an answer")
    assert (other.prompt_text, other.output_text) == (None, None)


async def test_no_text_is_piled_up_that_nobody_stores(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_UNREAD_WITH_TEXTS", 1)
    log = the_log()
    for name in ("a", "b", "c"):
        log.note(ended(name, texts=KeptTexts(lambda: "a question", ("an answer",))))
        await log.publish(redis)
    assert [record.prompt_text for record in await told(redis)] == ["a question", "a question", None]


async def test_one_that_cannot_be_written_down_is_counted_and_no_reason_to_lose_others(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        raise RuntimeError("no such token")

    log = the_log()
    log.note(ended("bad", texts=KeptTexts(fail, ("",))))
    log.note(ended("good"))
    await log.publish(redis)
    assert [record.request_id for record in await told(redis)] == ["good"]
    assert log.num_dropped == 1
    await log.publish(redis)
    assert "1 requests that ended are missing in the log" in caplog.text


async def test_what_a_silent_redis_was_not_told_is_told_later_in_order_and_the_oldest_go_beyond_a_bound(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_log, "_MOST_WAITING", 5)
    monkeypatch.setattr(request_log, "_RECORDS_AT_ONCE", 2)
    log = the_log()
    async with Redis.from_url("redis://127.0.0.1:1") as nobody:
        for index in range(8):
            log.note(ended(f"req_{index}"))
            if index % 2:
                with pytest.raises(RedisError):
                    await log.publish(nobody)
    assert log.num_dropped == 3
    with caplog.at_level(logging.WARNING):
        await log.publish(redis)
    assert [record.request_id for record in await told(redis)] == [f"req_{index}" for index in range(3, 8)]
    await log.publish(redis)
    assert await redis.xlen(keys.request_log()) == 5


async def test_streams_do_not_wait_while_much_is_written_down(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def note(*args: Any, **options: Any) -> LoggedRequest:
        threads.append(threading.current_thread() is threading.main_thread())
        return record_of(*args, **options)

    monkeypatch.setattr(request_log, "record_of", note)
    monkeypatch.setattr(request_log, "_RECORDS_AT_ONCE", 2)
    log = the_log()
    for index in range(3):
        log.note(ended(f"req_{index}"))
    await log.publish(redis)
    assert threads == [False] * 3
    assert len(await told(redis)) == 3


async def test_what_waits_is_bounded_in_bytes_too(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_BYTES", 5_000)
    log = the_log()
    for name in ("first", "last"):
        log.note(ended(name, texts=KeptTexts(lambda: "x" * 4_000, ("",))))
    await log.publish(redis)
    assert [record.request_id for record in await told(redis)] == ["last"]
    assert log.num_dropped == 1
