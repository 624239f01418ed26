"""Requests that an operator ends: the engine stops, the client is told, the books say aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serving.api.errors import problem_of
from serving.contracts.accounting import Spent
from serving.contracts.errors import AbortedByOperator
from serving.contracts.ids import RequestId
from tests.gateway.harness import Harness, RunningWorker, eventually, read, read_until_error

StartWorker = Callable[..., RunningWorker]
StartGateway = Callable[..., Any]


def is_idle(running: RunningWorker) -> bool:
    snapshot = running.snapshot()
    return snapshot.num_running == snapshot.num_waiting == snapshot.kv_blocks_used == 0


@pytest.fixture
async def harness(start_worker: StartWorker, start_gateway: StartGateway) -> tuple[Harness, RunningWorker]:
    running = start_worker()
    harness = await start_gateway()
    await eventually(lambda: bool(harness.gateway.pools()[0].has_engines))
    return harness, running


async def test_one_that_runs_ends_with_an_error_after_what_was_sent(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    for seed in (1, 2):
        running.runner.scripts[seed] = gateway.tokens("word " * 300)
    stream, other = gateway.ask(1, 2, max_tokens=300, permit="one"), gateway.ask(2, max_tokens=20)
    first = await anext(stream)
    assert [request.generation.request_id for request in gateway.gateway.in_flight(limit=9)] == ["req_1", "req_2"]
    assert gateway.gateway.abort(RequestId("req_1"))
    assert [request.generation.request_id for request in gateway.gateway.in_flight(limit=9)] == ["req_2"]
    text, error = await read_until_error(stream)
    assert (first.text + text).startswith("word")
    assert isinstance(error, AbortedByOperator)
    # Its company goes on, its blocks and its permit come back, and it counts once.
    texts, _ = await read(other)
    assert texts[0].startswith("word")
    await eventually(lambda: is_idle(running) and len(gateway.room.closed) == 1)
    (permit, spent, _), *_ = gateway.room.closed
    assert permit == "one"
    assert spent == Spent(stream.usage.prompt_tokens, stream.usage.completion_tokens)
    assert sorted(gateway.observer.outcomes) == ["aborted", "finished:length"]
    assert not gateway.gateway.abort(RequestId("req_1"))


async def test_one_that_waits_ends_before_it_was_begun(start_gateway: StartGateway) -> None:
    gateway: Harness = await start_gateway()  # and no engine
    stream = gateway.ask(1)
    started = asyncio.ensure_future(stream.started())
    assert gateway.gateway.abort(RequestId("req_1"))
    with pytest.raises(AbortedByOperator):
        await started
    await stream.aclose()
    assert gateway.observer.outcomes == ["aborted"]


async def test_one_that_ended_or_never_was_cannot_be_ended(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("fine words")
    await read(gateway.ask(1))
    assert not gateway.gateway.abort(RequestId("req_1"))
    assert not gateway.gateway.abort(RequestId("req_9"))
    assert gateway.observer.outcomes == ["finished:stop"]


def test_clients_do_not_try_again_what_an_operator_ended() -> None:
    """Widely used clients repeat a request after 408, 409, 429 and all from 500 on."""
    problem = problem_of(AbortedByOperator("an operator ended it"))
    assert (problem.status, problem.error.code, problem.error.type) == (410, "aborted_by_operator", "aborted_error")
    assert "Retry-After" not in problem.headers
