"""An engine that is told to take nothing new, to take work again, or to start anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.errors import QueueTimeout
from serving.contracts.messages import Control, Drain, Restart, Resume, encode
from tests.gateway.harness import RunningWorker, eventually, read

StartWorker = Callable[..., RunningWorker]
StartGateway = Callable[..., Any]
Tell = Callable[[RunningWorker, Control], None]

LONG = "word " * 150


@pytest.fixture
def tell(valkey: str) -> Tell:
    """Sends commands as the console does."""

    def send(running: RunningWorker, command: Control) -> None:
        with Redis.from_url(valkey) as redis:
            redis.xadd(keys.control(running.worker.engine_id), {keys.FIELD: encode(command)})

    return send


async def until(running: RunningWorker, state: str) -> None:
    await eventually(lambda: running.snapshot().standing == state)


async def test_a_drained_engine_ends_what_it_has_and_stays_until_it_may_resume(
    start_worker: StartWorker, start_gateway: StartGateway, tell: Tell
) -> None:
    running, gateway = start_worker(step_seconds=0.005), await start_gateway()
    running.runner.scripts |= {1: gateway.tokens(LONG), 2: gateway.tokens("back again")}
    stream = gateway.ask(1)
    await stream.started()
    tell(running, Drain())
    await until(running, "draining")
    assert await read(stream) == ({0: LONG}, {0: "stop"})
    await until(running, "drained")
    await eventually(lambda: not gateway.gateway.pools()[0].has_engines)
    late = gateway.ask(2)
    assert running.thread.is_alive()
    assert running.snapshot().num_running == running.snapshot().num_waiting == 0
    tell(running, Resume())
    await until(running, "ready")
    assert await read(late) == ({0: "back again"}, {0: "stop"})


async def test_what_waits_for_a_drained_engine_is_refused_when_its_time_is_up(
    start_worker: StartWorker, start_gateway: StartGateway, tell: Tell
) -> None:
    running, gateway = start_worker(), await start_gateway()
    await eventually(lambda: gateway.gateway.pools()[0].has_engines)
    tell(running, Drain())
    await eventually(lambda: not gateway.gateway.pools()[0].has_engines)
    with pytest.raises(QueueTimeout, match="its own timeout"):
        await gateway.ask(1, timeout_seconds=0.3).started()


async def test_the_others_take_what_a_drained_engine_does_not(
    start_worker: StartWorker, start_gateway: StartGateway, tell: Tell
) -> None:
    first, second, gateway = start_worker(), start_worker(), await start_gateway()
    await eventually(lambda: gateway.gateway.pools()[0].num_engines == 2)
    tell(first, Drain())
    await until(first, "drained")
    for running in (first, second):
        running.runner.scripts[1] = gateway.tokens("a b c")
    assert await asyncio.gather(*(read(gateway.ask(1)) for _ in range(6))) == [({0: "a b c"}, {0: "stop"})] * 6
    assert first.runner.num_generated == 0
    # Alone in taking work, it sees all that waits.
    await eventually(lambda: second.worker.num_other_engines == 0)
    tell(first, Resume())
    await eventually(lambda: second.worker.num_other_engines == 1)


async def test_an_engine_that_starts_anew_hands_back_what_takes_too_long(
    start_worker: StartWorker, start_gateway: StartGateway, tell: Tell
) -> None:
    first, gateway = start_worker(step_seconds=0.02, drain_seconds=0.2), await start_gateway()
    script = gateway.tokens(LONG)
    first.runner.scripts[1] = script
    stream = gateway.ask(1)
    await stream.started()
    tell(first, Restart())
    await asyncio.to_thread(first.thread.join, 20)
    assert not first.thread.is_alive()
    second = start_worker()
    second.runner.scripts[1] = script
    assert await read(stream) == ({0: LONG}, {0: "stop"})
    assert 0 < second.runner.num_generated < len(script)


async def test_an_engine_that_leaves_takes_no_other_word(
    start_worker: StartWorker, start_gateway: StartGateway, tell: Tell
) -> None:
    running, gateway = start_worker(step_seconds=0.01), await start_gateway()
    running.runner.scripts[1] = gateway.tokens(LONG)
    stream = gateway.ask(1)
    await stream.started()
    tell(running, Restart())
    tell(running, Resume())
    await until(running, "leaving")
    # A gateway of an earlier version knows no other word, and would take the engine for dead.
    assert running.snapshot().state == "draining"
    assert await read(stream) == ({0: LONG}, {0: "stop"})
    assert running.snapshot().standing == "leaving"
    await asyncio.to_thread(running.thread.join, 20)
    assert not running.thread.is_alive()
