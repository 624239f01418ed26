"""What the playground plays means what it means at the API."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import httpx
import pytest

from serving.api.playground import read_body
from serving.contracts.errors import DomainError, PoolNotFound
from tests.api.conftest import POOL, ScriptedGateway, ScriptedServices

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
EVERYTHING = {
    "max_tokens": 9,
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.125,
    "seed": -3,
    "stop": ["END", "\n"],
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.5,
}


@pytest.fixture
def model(gateway: ScriptedGateway) -> str:
    return gateway.view.model


async def play(services: ScriptedServices, endpoint: Any, body: dict[str, Any], *, pool: str = POOL) -> list[str]:
    async with contextlib.AsyncExitStack() as cleanup:
        stream = await services.prompter.play(
            pool, endpoint, body, request_id="req_1", arrived_at=time.monotonic(), cleanup=cleanup
        )
        return [delta.text async for delta in stream]


@pytest.mark.parametrize(
    ("endpoint", "path", "asked"),
    [
        ("chat", "/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **EVERYTHING}),
        ("chat", "/v1/chat/completions", {"messages": MESSAGES, "seed": 1}),
        ("completion", "/v1/completions", {"prompt": "Once", "logprobs": 2, **EVERYTHING}),
        ("completion", "/v1/completions", {"prompt": "Once", "seed": 1}),
    ],
)
async def test_a_body_asks_the_engine_the_same_here_and_there(
    services: ScriptedServices,
    gateway: ScriptedGateway,
    client: httpx.AsyncClient,
    model: str,
    endpoint: str,
    path: str,
    asked: dict[str, Any],
) -> None:
    body = {"model": model, "stream": True, **asked}
    assert await play(services, endpoint, body) == ["Hello", " 0"]
    assert (await client.post(path, json=body)).status_code == 200
    played, called = gateway.generations
    for name in ("prompt_ids", "params", "stop", "pool", "priority", "cache_salt", "timeout_seconds"):
        assert getattr(played, name) == getattr(called, name), name


async def test_it_refuses_in_the_words_of_the_api(
    services: ScriptedServices, client: httpx.AsyncClient, model: str
) -> None:
    for wrong in (
        {"temperature": 2.5},
        {"temperature": "hot"},
        {"top_p": -1},
        {"top_k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": 100_000},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"stop": [""]},
        {"top_logprobs": 3},
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "pilot", "content": "x"}]},
        {"stop_words": "x"},
        {"user": 7},
    ):
        body = {"model": model, "stream": True, "messages": MESSAGES, **wrong}
        with pytest.raises(DomainError) as caught:
            await play(services, "chat", body)
        content = json.dumps(body)
        told = await client.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
        error = told.json()["error"]
        assert (caught.value.code, caught.value.message, caught.value.param) == (
            error["code"],
            error["message"],
            error["param"],
        ), wrong


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"model": "another"}, "model"),
        ({"pool": "bulk"}, "pool"),
        ({"stream": False}, "stream"),
        ({"n": 2}, "n"),
        ({"tools": []}, "tools"),
        ({"grammar": "start: /a/"}, "grammar"),
    ],
)
def test_it_plays_one_answer_of_one_pool_as_it_comes(wrong: dict[str, Any], param: str) -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, **wrong}
    with pytest.raises(DomainError) as caught:
        read_body("chat", body, model="m", pool="default")
    assert caught.value.param == param


def test_a_completion_continues_one_text() -> None:
    body = {"model": "m", "stream": True, "pool": "default"}
    assert read_body("completion", {**body, "prompt": "Once"}, model="m", pool="default").pool == "default"
    for prompt in (["Once"], [1, 2], ["a", "b"]):
        with pytest.raises(DomainError, match="prompt must be one text"):
            read_body("completion", {**body, "prompt": prompt}, model="m", pool="default")


async def test_a_pool_that_is_none_is_told(services: ScriptedServices, model: str) -> None:
    with pytest.raises(PoolNotFound):
        await play(services, "chat", {"model": model, "stream": True, "messages": MESSAGES}, pool="other")
