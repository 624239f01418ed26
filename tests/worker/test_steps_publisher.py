"""What an engine publishes of its steps: all that a console needs to draw them, bounded, and never in the way."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import encode
from serving.contracts.steps import DECODE, KEPT_STEPS, PREEMPTED, PREFILL, StepBatch, StepRow, decode_steps
from serving.engine.stats import StepRecord
from serving.worker.lifecycle import EngineWorker
from serving.worker.steps_publisher import StepsPublisher, batch_of
from tests.engine.core.harness import World, submit
from tests.engine.core.runners import CacheRunner
from tests.worker.test_gauge import wait_until

ENGINE = EngineId("engine-1")
MakePublisher = Callable[..., StepsPublisher]


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def make_publisher(valkey: str) -> Iterator[MakePublisher]:
    """Makes publishers that are started, and end with the test."""
    made: list[StepsPublisher] = []

    def make(url: str = valkey, **options: Any) -> StepsPublisher:
        made.append(StepsPublisher(Redis.from_url(url), engine_id=ENGINE, gather_seconds=0.01, **options))
        made[-1].start()
        return made[-1]

    yield make
    for publisher in made:
        publisher.stop(timeout_seconds=5)


def records_of(num_steps: int, *, first: int = 1) -> list[StepRecord]:
    """Records of an engine that decodes one sequence, numbered from `first`."""
    world = World()
    world.submit(submit("a", ignore_eos=True))
    world.step(2)
    record = world.engine.records_since(1)[0]
    return [dataclasses.replace(record, step=first + index) for index in range(num_steps)]


def batches(redis: Redis) -> list[StepBatch]:
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", redis.xrange(keys.steps(ENGINE)))
    return [decode_steps(fields[keys.FIELD]) for _, fields in entries]


def steps(redis: Redis) -> list[int]:
    return [row.step for batch in batches(redis) for row in batch.rows]


def parts(row: StepRow, batch: StepBatch) -> dict[str, tuple[int, int]]:
    """Kind and tokens of each member, by request."""
    names = [key.request_id for key in batch.sequences]
    decoding = {names[place]: (DECODE, 1) for place in row.decoding}
    triples = zip(row.others[::3], row.others[1::3], row.others[2::3], strict=True)
    return decoding | {names[place]: (kind, tokens) for place, kind, tokens in triples}


def test_batch_tells_of_each_step_who_was_in_it_and_what_was_computed() -> None:
    world = World(num_blocks=8, tunables={"max_batch_tokens": 64, "max_running": 2})
    world.submit(*[submit(name, prompt=14, max_tokens=5, ignore_eos=True) for name in "abc"])
    world.run()
    batch = batch_of(world.engine.records_since(0), engine_id=ENGINE, num_dropped=0, clock_offset=1e9)
    first = batch.rows[0]
    assert parts(first, batch) == {"a": (PREFILL, 14), "b": (PREFILL, 14)}
    assert [batch.sequences[place].request_id for place in first.waiting] == ["c"]
    assert (first.num_prefill_tokens, first.max_batch_tokens, first.num_waiting) == (28, 64, 1)
    assert first.unix_seconds == pytest.approx(1e9 + 1000)
    assert (first.is_static, first.failed) == (False, False)
    assert [parts(row, batch)["b"] for row in batch.rows if (PREEMPTED, 0) in parts(row, batch).values()] == [
        (PREEMPTED, 0)
    ]
    assert [batch.sequences[place].request_id for row in batch.rows for place in row.ended] == ["a", "b", "c"]
    assert sorted(key.request_id for key in batch.sequences) == ["a", "b", "c"]


def test_who_was_aborted_between_two_steps_is_told_with_the_next() -> None:
    world = World()
    world.submit(*[submit(name, max_tokens=9, ignore_eos=True) for name in "ab"])
    world.step(2)
    world.abort("a")
    world.engine.take_events()
    world.step()
    assert [[key.request_id for key in record.ended] for record in world.engine.records_since(1)] == [[], ["a"]]


def test_static_steps_tell_their_padding() -> None:
    world = World(tunables={"mode": "static"})
    world.submit(submit("a", prompt=4, max_tokens=2, ignore_eos=True))
    world.submit(submit("b", prompt=9, max_tokens=5, ignore_eos=True))
    world.run()
    rows = batch_of(world.engine.records_since(0), engine_id=ENGINE, num_dropped=0, clock_offset=0.0).rows
    assert all(row.is_static for row in rows)
    assert [row.num_padded_tokens for row in rows] == [5, 0, 1, 1, 1]


def test_steps_are_published_in_order_and_go_by_themselves(redis: Redis, make_publisher: MakePublisher) -> None:
    publisher, records = make_publisher(), records_of(30)
    for record in records:
        publisher.publish([record])
    wait_until(lambda: len(steps(redis)) == 30)
    assert steps(redis) == list(range(1, 31))
    assert {batch.num_dropped for batch in batches(redis)} == {0}
    assert 0 < cast(int, redis.ttl(keys.steps(ENGINE))) <= 900


def test_only_the_latest_steps_stay(redis: Redis, make_publisher: MakePublisher) -> None:
    publisher = make_publisher()
    for first in range(1, 2 * KEPT_STEPS, 300):
        publisher.publish(records_of(300, first=first))
        wait_until(lambda first=first: steps(redis)[-1:] == [first + 299])  # type: ignore[misc]
    kept = steps(redis)
    assert kept == list(range(kept[0], 2 * KEPT_STEPS + 1))
    # Whole batches go, once none of their steps is wanted any more.
    assert KEPT_STEPS <= len(kept) < KEPT_STEPS + 200


def test_nothing_is_published_while_nothing_runs(redis: Redis, make_publisher: MakePublisher) -> None:
    publisher = make_publisher()
    publisher.publish([])
    publisher.publish(records_of(1))
    wait_until(lambda: steps(redis) == [1])
    publisher.publish([])
    publisher.stop(timeout_seconds=5)
    assert len(batches(redis)) == 1


def test_what_waits_is_sent_as_the_engine_leaves(redis: Redis, make_publisher: MakePublisher) -> None:
    publisher = make_publisher()
    publisher.publish(records_of(3))
    publisher.stop(timeout_seconds=5)
    assert steps(redis) == [1, 2, 3]


def test_a_hole_is_seen_and_counted(redis: Redis, make_publisher: MakePublisher) -> None:
    """C92."""
    publisher, records = make_publisher(), records_of(9)
    publisher.publish(records[:3])
    wait_until(lambda: steps(redis) == [1, 2, 3])
    publisher.publish(records[6:])
    wait_until(lambda: len(steps(redis)) == 6)
    assert steps(redis) == [1, 2, 3, 7, 8, 9]
    assert batches(redis)[-1].num_dropped == 3


def test_steps_are_dropped_while_redis_is_away_and_nobody_waits_for_it(
    make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        publisher = make_publisher("unix:///nonexistent/valkey.sock")
        for record in records_of(50):
            publisher.publish([record])
        wait_until(lambda: bool(caplog.records))
        publisher.stop(timeout_seconds=5)
    assert len([record for record in caplog.records if "dropped" in record.message]) == 1
    assert "steps-publisher" not in [thread.name for thread in threading.enumerate()]


def test_an_engine_publishes_what_it_computes(redis: Redis, valkey: str) -> None:
    worker = EngineWorker(
        CacheRunner(),
        redis=lambda: Redis.from_url(valkey),
        pool=PoolName("default"),
        model="tiny",
        device="cpu",
        dtype="none",
    )
    running = threading.Thread(target=worker.run, kwargs={"drain_seconds": 5.0}, daemon=True)
    running.start()
    wait_until(lambda: redis.exists(keys.heartbeat(worker.engine_id)) == 1)
    message = encode(submit("a", prompt=4, max_tokens=6, ignore_eos=True))
    redis.xadd(keys.inbox(PoolName("default")), {keys.FIELD: message})
    wait_until(lambda: redis.exists(keys.steps(worker.engine_id)) == 1)
    worker.leave()
    running.join(20)
    assert not running.is_alive()
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", redis.xrange(keys.steps(worker.engine_id)))
    published = [row for _, fields in entries for row in decode_steps(fields[keys.FIELD]).rows]
    assert [row.step for row in published] == [1, 2, 3, 4, 5, 6]
    assert published[0].num_prefill_tokens == 4
    assert all(row.total_ms > 0 for row in published)
