"""Requests that wait: how long they may, where they stand, and what they are told in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.errors import QueueTimeout
from serving.contracts.ids import EngineId, RequestId
from serving.contracts.messages import Accepted, AnnouncedTunables, Reply, SequenceKey, decode_reply, encode
from serving.contracts.tunables import Tunables
from serving.worker import host
from tests.gateway.harness import POOL, Harness, RunningWorker, eventually, read

StartWorker = Callable[..., RunningWorker]
StartGateway = Callable[..., Any]


def announce(url: str, **changes: Any) -> None:
    Redis.from_url(url).set(keys.announced_tunables(POOL), encode(AnnouncedTunables(3, Tunables(**changes))))


async def ask_behind(running: RunningWorker, gateway: Harness) -> Any:
    """A stream that holds the only place for as long as the test lasts, on the slowest machine: a minute."""
    running.runner.scripts[1] = gateway.tokens("word " * 900)
    running.runner.step_seconds = 0.07
    stream = gateway.ask(1, max_tokens=900)
    await stream.started()
    return stream


@pytest.mark.parametrize("has_engine", [True, False], ids=["at its engine", "in the inbox"])
async def test_own_timeout_refuses_long_before_the_longest_wait(
    start_worker: StartWorker, start_gateway: StartGateway, valkey: str, has_engine: bool
) -> None:
    announce(valkey, max_running=1)
    running, gateway = (start_worker() if has_engine else None), await start_gateway()
    first = await ask_behind(running, gateway) if running else None
    second = gateway.ask(1, timeout_seconds=0.3)
    with pytest.raises(QueueTimeout) as caught:
        await asyncio.wait_for(second.started(), 20)
    assert "its own timeout" in caught.value.message
    assert "0.3 s" in caught.value.message
    assert caught.value.retry_after_seconds >= 1
    await second.aclose()
    assert gateway.observer.outcomes == ["refused:queue_timeout"]
    if first is not None:
        await first.aclose()


async def test_own_timeout_does_not_end_what_runs(
    start_worker: StartWorker, start_gateway: StartGateway, valkey: str
) -> None:
    announce(valkey, max_prefill_chunk=1)
    running, gateway = start_worker(step_seconds=0.05), await start_gateway()
    running.runner.scripts[1] = gateway.tokens("fine")
    texts, _ = await read(gateway.ask(1, prompt="a long prompt " * 10, timeout_seconds=0.4))
    assert texts == {0: "fine"}


async def test_a_timeout_of_a_request_that_began_is_told_to_no_other_engine(
    start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    """A choice that was scheduled and lost its engine waits for the next for as long as it takes."""
    gateway = await start_gateway()
    running = start_worker()
    running.runner.scripts[1] = gateway.tokens("word " * 100)
    stream = gateway.ask(1, timeout_seconds=5.0)
    await stream.started()
    request = next(iter(gateway.gateway._requests.values()))
    assert request.next_submit(request.choices[0], owner_id=gateway.gateway._owner_id, now=1.0).timeout_seconds is None
    await stream.aclose()


async def test_those_who_wait_hear_where_they_stand(
    start_worker: StartWorker, start_gateway: StartGateway, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_REMIND_SECONDS", 0.05)
    announce(valkey, max_running=1)
    running, gateway = start_worker(), await start_gateway()
    first = await ask_behind(running, gateway)
    waiting = []
    for seeds, num_ahead in (((1, 2), 0), ((1,), 2), ((1,), 3)):
        # One after the other: what is sent within one moment may arrive in any order.
        waiting.append(gateway.ask(*seeds))
        await eventually(lambda num_ahead=num_ahead: waiting[-1].num_ahead == num_ahead)
    assert gateway.gateway.keeps_waiting(POOL, "tests")
    await waiting[0].aclose()
    await eventually(lambda: [stream.num_ahead for stream in waiting[1:]] == [0, 1])
    for stream in (*waiting, first):
        await stream.aclose()
    assert not gateway.gateway.keeps_waiting(POOL, "tests")


def test_an_engine_that_knows_no_positions_is_understood() -> None:
    class Older(msgspec.Struct, frozen=True, tag="a", array_like=True):
        key: SequenceKey
        attempt: int

    key = SequenceKey(RequestId("r"), 0)
    message = encode(Reply(EngineId("engine"), [Older(key, 1)]))  # type: ignore[list-item]
    assert decode_reply(message).events == [Accepted(key, 1)]
