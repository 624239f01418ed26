"""What users of other servers reported of odd values, by the cases' numbers, on both endpoints alike: each is refused
by name or means what it says, and the next request is served."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import MODEL, ScriptedGateway
from tests.api.envelope import error_of
from tests.api.telling import let_tell

QUESTION = [{"role": "user", "content": "Hi"}]
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "Hi"},
    "/v1/chat/completions": {"model": MODEL, "messages": QUESTION},
}
SAMPLING_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
WORDS_FOR_NO_NUMBER = ("NaN", "Infinity", "-Infinity", "1e400", "-1e400")

on_both_endpoints = pytest.mark.parametrize("path", ENDPOINTS)


@pytest.fixture(autouse=True)
async def next_request_is_served(client: httpx.AsyncClient, gateway: ScriptedGateway) -> AsyncIterator[None]:
    yield
    assert (await client.post("/v1/completions", json=ENDPOINTS["/v1/completions"])).status_code == 200


ODD_VALUES: dict[str, list[Any]] = {
    "stop": ["", [""], ["a", ""], list("abcde"), "x" * 100_000, [1]],  # C23
    "stop_token_ids": [[value] for value in (None, "x", -1, 1e99, True, 256)],  # C24
    "max_tokens": [-1, 1.5, "5", True, 0],  # C32
    "logprobs": [-1, 21, 100_000],  # C38
    "n": [1_000_000, 0, -1],  # C39
    "best_of": [999],  # C39
    **{name: ["nan", -2.1, 10.1, True] for name in SAMPLING_NUMBERS},  # C45
    "logit_bias": [
        *({"999999": 5}, {"-1": 1}, {"abc": 1}, {"5": 101}, {"5": "x"}),
        {str(token_id): 1 for token_id in range(50_000)},
    ],  # C49
    "top_k": [-2],  # C51
    "response_format": [{"type": "json_schema", "schema": {}}, {"type": "x"}, []],  # C62
}


@on_both_endpoints
@pytest.mark.parametrize("field", ODD_VALUES)
async def test_odd_values_are_refused_by_name(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, field: str
) -> None:
    for value in ODD_VALUES[field]:
        error = error_of(await client.post(path, json={**ENDPOINTS[path], field: value}), status=400)
        assert (error["param"] or "").split(".")[0].split("[")[0] == field
    assert not gateway.generations


@on_both_endpoints
async def test_what_is_no_number_in_json_is_refused(client: httpx.AsyncClient, path: str) -> None:
    """C45."""
    body = json.dumps(ENDPOINTS[path])
    for field, number in itertools.product(SAMPLING_NUMBERS, WORDS_FOR_NO_NUMBER):
        content = f'{body[:-1]}, "{field}": {number}}}'
        answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert error_of(answer, status=400)["code"] == "invalid_json"


@on_both_endpoints
@pytest.mark.parametrize("value", [None, []])
async def test_no_stop_strings_are_none(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, value: Any
) -> None:
    """C23."""
    assert (await client.post(path, json={**ENDPOINTS[path], "stop": value})).status_code == 200
    assert gateway.generations[0].stop == ()


@on_both_endpoints
async def test_too_many_top_logprobs_are_refused_with_a_long_prompt_too(client: httpx.AsyncClient, path: str) -> None:
    """C38."""
    long = (
        {"prompt": "x" * 400} if "prompt" in ENDPOINTS[path] else {"messages": [{"role": "user", "content": "x" * 400}]}
    )
    asking = {"logprobs": -1} if "prompt" in long else {"logprobs": True, "top_logprobs": 100_000}
    error_of(await client.post(path, json={"model": MODEL, **long, **asking}), status=400)


@on_both_endpoints
@pytest.mark.parametrize(("given", "meant"), [(0, 0), (-1, 0), (1, 1), (257, 257), (None, 0)])
async def test_top_k_is_off_or_what_it_says(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, given: int | None, meant: int
) -> None:
    """C51."""
    assert (await client.post(path, json={**ENDPOINTS[path], "top_k": given})).status_code == 200
    assert gateway.generations[0].params[0].top_k == meant


@on_both_endpoints
async def test_top_p_of_nothing_takes_the_top_token(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str
) -> None:
    """C52."""
    body = {**ENDPOINTS[path], "top_p": 0, "temperature": 1, "seed": 1}
    for _ in range(2):
        assert (await client.post(path, json=body)).status_code == 200
    first, second = (generation.params[0] for generation in gateway.generations)
    assert first == second
    assert first.greedy


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], [[], [1]], None])
async def test_empty_prompts_are_refused(client: httpx.AsyncClient, prompt: Any) -> None:
    """C31; of a conversation, the template makes more than nothing, but of none."""
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
    assert error_of(answer, status=400)["param"] == "prompt"
    answer = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": []})
    assert error_of(answer, status=400)["param"] == "messages"


async def test_echo_without_an_answer_tells_of_the_prompt(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    """C32."""
    let_tell(gateway)
    body = {**ENDPOINTS["/v1/completions"], "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = await client.post("/v1/completions", json=body)
    (choice,) = answer.json()["choices"]
    assert choice["text"] == "Hi"
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 2


@pytest.mark.parametrize("roles", ["s", "su", "uu", "au", "ua", "tu", "du", "xu", "f", ""])
async def test_roles_in_any_order_are_the_templates_to_judge(client: httpx.AsyncClient, roles: str) -> None:
    """C58."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "d": "developer", "f": "function", "x": "x"}
    messages = [{"role": names[role], "content": "Hi"} for role in roles]
    answer = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
    if roles in ("tu", "xu", ""):
        reason = {"tu": "a tool cannot speak first", "xu": "one of system", "": "not empty"}[roles]
        assert reason in error_of(answer, status=400)["message"]
    else:
        assert answer.status_code == 200


async def test_nothing_that_a_message_names_is_ever_fetched(client: httpx.AsyncClient) -> None:
    """C61."""
    num_visitors = 0

    async def visit(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_visitors
        num_visitors += 1
        writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x.png"
    async with server:
        for url in (
            address,
            f"http://localhost/redirect?to={address}",
            "file:///etc/passwd",
            "data:image/png;base64,AA",
        ):
            for kind, part in (("image_url", {"url": url}), ("input_audio", {"data": url}), ("file", {"file_id": url})):
                messages = [{"role": "user", "content": [{"type": kind, kind: part}]}]
                answer = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
                assert error_of(answer, status=400)["param"] == "messages[0].content[0].type"
        large = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 3_000_000}}]}]
        answer = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": large})
        error_of(answer, status=413)
    assert num_visitors == 0
