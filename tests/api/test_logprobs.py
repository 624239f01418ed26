"""Log probabilities, echoes and the sampling fields beside them, in OpenAI's shapes (a prompt's also in vLLM's)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.api.conftest import MODEL, ScriptedGateway
from tests.api.envelope import error_of
from tests.api.telling import CHAT, COMPLETION, CONTENT, QUESTION, let_tell
from tests.api.test_answers import events_of


@pytest.fixture
def scripted(gateway: ScriptedGateway) -> ScriptedGateway:
    """Says "a€", and tells what each request asks for."""
    let_tell(gateway)
    return gateway


# --- chat ---


async def test_chat_tells_tokens_bytes_and_the_most_probable(
    client: httpx.AsyncClient, scripted: ScriptedGateway
) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    for choice in answer["choices"]:
        assert choice["logprobs"]["refusal"] is None
        content = choice["logprobs"]["content"]
        assert [(entry["token"], entry["logprob"], entry["bytes"]) for entry in content] == CONTENT
        assert [list(entry) for entry in content] == [["token", "logprob", "bytes", "top_logprobs"]] * 5
        assert content[0]["top_logprobs"] == [
            {"token": "a", "logprob": -0.25, "bytes": [97]},
            {"token": "seven", "logprob": -9999.0, "bytes": list(b"seven")},
        ]
        joined = b"".join(bytes(entry["bytes"] or ()) for entry in content)
        assert joined.decode() == choice["message"]["content"]
    assert [params.num_logprobs for params in scripted.generations[0].params] == [2, 2]
    assert "prompt_logprobs" not in answer


async def test_a_stream_tells_what_the_whole_answer_does(client: httpx.AsyncClient, scripted: ScriptedGateway) -> None:
    for path, body in (
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1, "n": 2}),
        ("/v1/completions", {**COMPLETION, "logprobs": 1, "n": 2}),
        ("/v1/completions", {**COMPLETION, "logprobs": 1, "n": 2, "echo": True}),
        ("/v1/completions", {**COMPLETION, "prompt": ["Hi", "You"], "logprobs": 1, "n": 3, "echo": True}),
        ("/v1/completions", {**COMPLETION, "prompt": [72], "logprobs": 1, "echo": True}),
        ("/v1/completions", {**COMPLETION, "echo": True}),
    ):
        whole = (await client.post(path, json=body)).json()
        chunks = events_of(await client.post(path, json={**body, "stream": True}))
        for choice in whole["choices"]:
            parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
            if "message" in choice:
                text = "".join(part["delta"].get("content", "") for part in parts)
                assert text == choice["message"]["content"]
            else:
                assert "".join(part["text"] for part in parts) == choice["text"]
            told = [part["logprobs"] for part in parts if part["logprobs"] is not None]
            if choice["logprobs"] is None:
                assert told == []
                continue
            for name, values in choice["logprobs"].items():
                joined = None if values is None else [value for piece in told for value in piece[name]]
                assert joined == values


async def test_chat_without_logprobs_tells_none(client: httpx.AsyncClient, scripted: ScriptedGateway) -> None:
    for body in (CHAT, {**CHAT, "logprobs": False}, {**CHAT, "logprobs": None, "top_logprobs": None}):
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        assert answer["choices"][0]["logprobs"] is None
    assert all(generation.params[0].num_logprobs is None for generation in scripted.generations)


async def test_chat_tells_of_the_tokens_alone_without_top_logprobs(
    client: httpx.AsyncClient, scripted: ScriptedGateway
) -> None:
    answer = (await client.post("/v1/chat/completions", json={**CHAT, "logprobs": True})).json()
    assert [entry["top_logprobs"] for entry in answer["choices"][0]["logprobs"]["content"]] == [[]] * 5


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True, "top_logprobs": 21},
        {"logprobs": True, "top_logprobs": -1},
        {"logprobs": True, "top_logprobs": 100_000},
        {"logprobs": True, "top_logprobs": "5"},
        {"logprobs": True, "top_logprobs": True},
        {"top_logprobs": 5},
        {"logprobs": False, "top_logprobs": 0},
    ],
)
async def test_chats_top_logprobs_are_few_and_need_logprobs(
    client: httpx.AsyncClient, gateway: ScriptedGateway, fields: dict[str, Any]
) -> None:
    error = error_of(await client.post("/v1/chat/completions", json={**CHAT, **fields}), status=400)
    assert error["param"] == "top_logprobs"
    assert not gateway.generations


@pytest.mark.parametrize("value", [5, "true", 1, -1])
async def test_chats_logprobs_are_true_or_false(client: httpx.AsyncClient, value: Any) -> None:
    response = await client.post("/v1/chat/completions", json={**CHAT, "logprobs": value})
    assert error_of(response, status=400)["param"] == "logprobs"


async def test_the_official_client_reads_them(sdk: openai.AsyncOpenAI, scripted: ScriptedGateway) -> None:
    chat = await sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,  # type: ignore[arg-type]
        logprobs=True,
        top_logprobs=1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": 3},
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert [(entry.token, entry.logprob, entry.bytes) for entry in logprobs.content or ()] == CONTENT
    completion = await sdk.completions.create(model=MODEL, prompt="Hi", logprobs=1)
    found = completion.choices[0].logprobs
    assert found is not None
    assert found.tokens == [name for name, _, _ in CONTENT]


# --- completions ---


async def test_completion_tells_them_list_by_list(client: httpx.AsyncClient, scripted: ScriptedGateway) -> None:
    answer = (await client.post("/v1/completions", json={**COMPLETION, "logprobs": 2})).json()
    (choice,) = answer["choices"]
    assert choice["logprobs"] == {
        "tokens": [name for name, _, _ in CONTENT],
        "token_logprobs": [logprob for _, logprob, _ in CONTENT],
        "top_logprobs": [{name: logprob, "seven": -9999.0} for name, logprob, _ in CONTENT],
        "text_offset": [0, 1, 1, 1, 2],
    }
    assert "prompt_logprobs" not in choice


async def test_a_places_most_probable_tokens_include_the_one_that_stands_there(
    client: httpx.AsyncClient, scripted: ScriptedGateway
) -> None:
    answer = (await client.post("/v1/completions", json={**COMPLETION, "logprobs": 0})).json()
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{name: logprob} for name, logprob, _ in CONTENT]


async def test_everything_told_is_strict_json(client: httpx.AsyncClient, scripted: ScriptedGateway) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    response = await client.post("/v1/completions", json={**COMPLETION, "logprobs": 20, "prompt_logprobs": 20})
    assert response.status_code == 200
    json.loads(response.text, parse_constant=refuse)


# --- what the gateway is asked for ---


async def test_sampling_fields_reach_the_gateway(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    fields = {
        "presence_penalty": 0.5,
        "frequency_penalty": -1,
        "repetition_penalty": 1.2,
        "logit_bias": {"5": -100, "0": 2.5},
        "priority": -3,
    }
    await client.post("/v1/completions", json={**COMPLETION, **fields})
    (generation,) = gateway.generations
    (params,) = generation.params
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -1.0, 1.2)
    assert params.logit_bias == ((5, -100.0), (0, 2.5))
    assert generation.priority == -3


async def test_as_many_biases_as_may_be_are_taken_and_no_more(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    biases = {str(index): 1 for index in range(50_000)}
    response = await client.post("/v1/completions", json={**COMPLETION, "logit_bias": biases})
    assert error_of(response, status=400)["param"] == "logit_bias"
    assert not gateway.generations
