"""Streams in time: headers held back, comments while waiting, errors within, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core import signals

from serving.api import streaming
from serving.contracts import keys
from serving.contracts.errors import EngineFailure, QueueTimeout
from serving.gateway.generation import ChoiceDelta
from tests.api.conftest import MODEL, POOL, Connection, ScriptedGateway, ScriptedServices

Connect = Callable[[str, dict[str, Any]], Connection]
STREAM: dict[str, Any] = {"model": MODEL, "prompt": "Hi", "stream": True}
WHOLE: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
PATH = "/v1/completions"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what is waited for sends no signal)
            await asyncio.sleep(0.005)


async def permits_in_use(services: ScriptedServices) -> int:
    return int(await services.redis.hget(keys.permit_weights(POOL), "total:requests") or 0)


async def test_headers_wait_for_the_first_scheduling(connect: Connect, gateway: ScriptedGateway) -> None:
    gateway.holds = True
    connection = connect(PATH, STREAM)
    await until(lambda: len(gateway.streams) == 1)
    await asyncio.sleep(0.05)
    assert not connection.has_answered
    gateway.play(0)
    assert (await connection.receive())["status"] == 200
    assert (await connection.receive_rest()).endswith(b"data: [DONE]\n\n")


async def test_chunks_leave_as_they_come(connect: Connect, gateway: ScriptedGateway) -> None:
    gateway.holds = True
    connection = connect(PATH, STREAM)
    await until(lambda: len(gateway.streams) == 1)
    stream = gateway.streams[0]
    stream.mark_started()
    assert (await connection.receive())["status"] == 200
    for text in ("one", "two", "three"):
        stream.push(ChoiceDelta(0, text, 1))
        message = await connection.receive()
        assert json.loads(message["body"].removeprefix(b"data: "))["choices"][0]["text"] == text
    stream.push(ChoiceDelta(0, "", 0, "length"))
    assert b"[DONE]" in await connection.receive_rest()


async def test_long_wait_releases_the_headers_and_is_told_by_comments(
    connect: Connect, services: ScriptedServices, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "WAITING_COMMENT_SECONDS", 0.02)
    services.header_hold_seconds = 0.02
    gateway.holds = True
    connection = connect(PATH, STREAM)
    assert (await connection.receive())["status"] == 200
    for _ in range(3):
        assert (await connection.receive())["body"] == b": waiting\n\n"
    gateway.play(0)
    rest = await connection.receive_rest()
    assert b"Hello" in rest
    assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("started", [False, True])
async def test_failure_after_the_headers_is_an_event_without_an_end(
    connect: Connect, services: ScriptedServices, gateway: ScriptedGateway, started: bool
) -> None:
    services.header_hold_seconds = 0.02
    gateway.holds = True
    connection = connect(PATH, STREAM)
    assert (await connection.receive())["status"] == 200
    stream = gateway.streams[0]
    if started:
        stream.mark_started()
        stream.push(ChoiceDelta(0, "some text", 2))
        stream.fail(EngineFailure("the engine died"))
    else:
        stream.fail(QueueTimeout("it waited too long"))
    rest = await connection.receive_rest()
    last = rest.split(b"\n\n")[-2]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == ("engine_error" if started else "queue_timeout")
    assert b"[DONE]" not in rest
    assert b'"finish_reason":"' not in rest
    assert (b"some text" in rest) == started
    await connection.task
    assert gateway.num_closed >= 1


async def test_exception_within_a_stream_is_an_event_that_tells_nothing(
    connect: Connect, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.holds = True
    connection = connect(PATH, STREAM)
    await until(lambda: len(gateway.streams) == 1)
    gateway.streams[0].mark_started()
    gateway.streams[0].push("no delta at all")  # type: ignore[arg-type]
    assert (await connection.receive())["status"] == 200
    rest = await connection.receive_rest()
    assert b"internal_error" in rest
    assert b"AttributeError" not in rest


@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_client_that_leaves_while_its_request_waits_ends_it(
    connect: Connect, gateway: ScriptedGateway, body: dict[str, Any]
) -> None:
    gateway.holds = True
    connection = connect(PATH, body)
    await until(lambda: len(gateway.streams) == 1)
    await connection.leave()
    assert gateway.num_closed >= 1


@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_client_that_leaves_amid_the_text_ends_it(
    connect: Connect, gateway: ScriptedGateway, body: dict[str, Any]
) -> None:
    gateway.holds = True
    connection = connect(PATH, body)
    await until(lambda: len(gateway.streams) == 1)
    gateway.streams[0].mark_started()
    gateway.streams[0].push(ChoiceDelta(0, "text", 1))
    if body is STREAM:
        assert (await connection.receive())["status"] == 200
        assert b"text" in (await connection.receive())["body"]
    else:
        await asyncio.sleep(0.02)
    await connection.leave()
    assert gateway.num_closed >= 1


async def test_client_that_leaves_among_comments_ends_its_request(
    connect: Connect, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    services.header_hold_seconds = 0.0
    gateway.holds = True
    connection = connect(PATH, STREAM)
    assert (await connection.receive())["status"] == 200
    assert (await connection.receive())["body"] == b": waiting\n\n"
    await connection.leave()
    assert gateway.num_closed >= 1


async def test_client_that_leaves_several_prompts_ends_them_all(connect: Connect, gateway: ScriptedGateway) -> None:
    gateway.holds = True
    connection = connect(PATH, {**STREAM, "prompt": ["a", "b", "c"]})
    await until(lambda: len(gateway.streams) == 3)
    await connection.leave()
    assert gateway.num_closed >= 3


async def test_leaving_at_any_moment_leaves_no_permit_and_no_unfinished_request(
    connect: Connect, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    finished: list[Any] = []

    def note(**_: Any) -> None:
        finished.append(None)

    signals.request_finished.connect(note)
    gateway.holds = True
    try:
        for index in range(60):
            connection = connect(PATH, STREAM if index % 2 else WHOLE)
            for _ in range(index):
                await asyncio.sleep(0.0005)
            await connection.leave()
    finally:
        signals.request_finished.disconnect(note)
    assert len(finished) == 60
    # The gateway gives back the permits of what it was given; all others came back by themselves.
    for permit in gateway.permits:
        await services.door.release(permit)
    assert await permits_in_use(services) == 0
    assert gateway.num_closed >= len(gateway.streams)
    counted = len(services.observer.outcomes)
    assert set(services.observer.outcomes) <= {"aborted"}
    assert counted + len(gateway.streams) <= 60
