"""Whose doing an interval or a failure is, where a request was at several engines. What engines say is scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId, RequestId
from serving.contracts.messages import (
    Accepted,
    EngineTimings,
    Event,
    Finished,
    Reply,
    Returned,
    Scheduled,
    SequenceKey,
    Tokens,
    encode,
)
from tests.gateway.harness import POOL, Harness, eventually
from tests.telemetry.conftest import snapshot

ONE, TWO = EngineId("engine-1"), EngineId("engine-2")
TIMINGS = EngineTimings(queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0)
OWNER, REQUEST = OwnerId("owner"), RequestId("req_1")


class Script:
    """Says what two engines that live would say of the first request."""

    def __init__(self, redis: Redis, harness: Harness) -> None:
        self._redis = redis
        self.observer = harness.observer

    def say(self, engine_id: EngineId, *events: Event) -> None:
        self._redis.xadd(keys.replies(OWNER), {keys.FIELD: encode(Reply(engine_id, list(events)))})

    def engines_of(self, name: str) -> list[EngineId | None]:
        return [facts["engine_id"] for facts in self.observer.named(name)]

    async def ended(self) -> dict[str, Any]:
        await eventually(lambda: bool(self.observer.outcomes))
        (facts,) = self.observer.named("ended")
        return dict(facts)


@pytest.fixture
async def script(valkey: str, start_gateway: Callable[..., Any]) -> tuple[Script, Harness]:
    redis = Redis.from_url(valkey)
    for engine_id in (ONE, TWO):
        redis.set(keys.heartbeat(engine_id), encode(snapshot(engine_id)))
        redis.zadd(keys.engines(POOL), {engine_id: 1})
    harness = await start_gateway(owner=OWNER)
    return Script(redis, harness), harness


def key(choice: int = 0) -> SequenceKey:
    return SequenceKey(REQUEST, choice)


@pytest.mark.parametrize("moves_after", [0, 2])
async def test_the_wait_for_another_engine_is_neither_engines_doing(
    script: tuple[Script, Harness], moves_after: int
) -> None:
    engines, harness = script
    tokens = harness.tokens("one two three four five six")[:4]
    stream = harness.ask(1)
    first = [Tokens(key(), 1, index, [tokens[index]]) for index in range(moves_after)]
    start = [Scheduled(key(), 1, 0.0)] if moves_after else []
    engines.say(ONE, Accepted(key(), 1), *start, *first, Returned(key(), 1))
    rest = [Tokens(key(), 2, index, [tokens[index]]) for index in range(moves_after, 4)]
    # An attempt that has not begun is not listened to.
    await eventually(lambda: harness.gateway._requests[REQUEST].choices[0].attempt == 2)
    engines.say(TWO, Accepted(key(), 2), Scheduled(key(), 2, 0.0), *rest, Finished(key(), 2, "stop", 4, TIMINGS))
    ended = await engines.ended()
    assert (ended["engine_id"], ended["sole_engine_id"], ended["num_attempts"]) == (TWO, None, 2)
    if moves_after:
        assert engines.engines_of("scheduled") == engines.engines_of("first_token") == [ONE]
        assert engines.engines_of("token_gap") == [ONE, None, TWO]
    else:
        assert engines.engines_of("scheduled") == engines.engines_of("first_token") == [None]
        assert engines.engines_of("token_gap") == [TWO, TWO, TWO]
    await stream.aclose()


async def test_of_choices_at_two_engines_each_has_its_own_and_the_whole_is_neithers(
    script: tuple[Script, Harness],
) -> None:
    engines, harness = script
    token = harness.tokens("one")[0]
    stream = harness.ask(1, 2)
    for choice, engine_id in enumerate((ONE, TWO)):
        engines.say(
            engine_id,
            Accepted(key(choice), 1),
            *(Tokens(key(choice), 1, index, [token]) for index in range(2)),
            Finished(key(choice), 1, "stop", 2, TIMINGS),
        )
    ended = await engines.ended()
    assert (ended["outcome"], ended["sole_engine_id"]) == ("finished:stop", None)
    assert engines.engines_of("token_gap") == [ONE, TWO]
    await stream.aclose()


async def test_a_failure_is_that_of_the_engine_that_failed(script: tuple[Script, Harness]) -> None:
    engines, harness = script
    stream = harness.ask(1, 2)
    engines.say(ONE, Accepted(key(0), 1), Scheduled(key(0), 1, 0.0))
    engines.say(TWO, Accepted(key(1), 1), Scheduled(key(1), 1, 0.0))
    engines.say(ONE, Finished(key(0), 1, "error", 0, TIMINGS, "broken"))
    ended = await engines.ended()
    assert ended["outcome"].startswith("failed:")
    assert ended["engine_id"] == ONE
    await stream.aclose()
