"""What is answered: OpenAI's shapes, as the official client and a strict reader see them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from serving.admission.models import Tenant
from serving.contracts.errors import EngineFailure
from serving.contracts.sampling import MAX_SEED
from serving.gateway.generation import ChoiceDelta, Generation
from tests.api.conftest import CONTEXT, MODEL, ScriptedGateway, ScriptedServices

QUESTION = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": QUESTION}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The stream's chunks; checks that nothing but them and `[DONE]` was sent."""
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_chat_answer_has_exactly_the_shape_of_openais(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == str(len(response.content))
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": f"Hello {index}", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
            for index in range(2)
        ],
        "usage": {
            "prompt_tokens": len("<user>Hi<assistant>"),
            "completion_tokens": 4,
            "total_tokens": len("<user>Hi<assistant>") + 4,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


async def test_completion_has_exactly_the_shape_of_openais(client: httpx.AsyncClient) -> None:
    body = (await client.post("/v1/completions", json=COMPLETION)).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("usage")["total_tokens"] == 4
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "Hello 0", "finish_reason": "stop", "logprobs": None}],
    }


async def test_chat_stream_is_null_until_one_terminal_reason_a_choice_then_usage_then_done(
    client: httpx.AsyncClient,
) -> None:
    body = {**CHAT, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    *chunks, last = events_of(response)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    assert {chunk["object"] for chunk in [*chunks, last]} == {"chat.completion.chunk"}
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in choices) == f"Hello {index}"
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
        assert all(choice["logprobs"] is None for choice in choices)


async def test_stream_without_usage_never_mentions_it(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={**COMPLETION, "stream": True})
    chunks = events_of(response)
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello 0"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_empty_deltas_are_not_sent(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    gateway.script = lambda _: [ChoiceDelta(0, "", 1), ChoiceDelta(0, "a", 1), ChoiceDelta(0, "", 0, "length")]
    chunks = events_of(await client.post("/v1/completions", json={**COMPLETION, "stream": True}))
    assert [(chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [
        ("a", None),
        ("", "length"),
    ]


async def test_headers_of_a_stream_keep_proxies_from_holding_it_back(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/completions", json={**COMPLETION, "stream": True}, headers={"Accept-Encoding": "gzip"}
    )
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    assert "content-length" not in response.headers


async def test_official_client_reads_answers_and_streams(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=QUESTION, user="someone", temperature=0)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "Hello 0"
    assert answer.usage is not None
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "Hello 0"
    assert chunks[-1].usage is not None
    assert (await sdk.completions.create(model=MODEL, prompt="Hi")).choices[0].text == "Hello 0"
    listed = (await sdk.models.list()).data
    assert [(model.id, model.model_extra) for model in listed] == [(MODEL, {"max_model_len": CONTEXT})]
    assert (await sdk.models.retrieve(MODEL)).id == MODEL


async def test_several_prompts_number_their_choices_through(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    def repeat_prompt(generation: Generation) -> list[Any]:
        text = bytes(generation.prompt_ids).hex()
        return [ChoiceDelta(choice, f"{text}/{choice}", 1, "stop") for choice in range(len(generation.params))]

    gateway.script = repeat_prompt
    body = {"model": MODEL, "prompt": [[1], [2, 3]], "n": 2}
    whole = (await client.post("/v1/completions", json=body)).json()
    texts = ["01/0", "01/1", "0203/0", "0203/1"]
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == list(enumerate(texts))
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] == 4
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    streamed = events_of(await client.post("/v1/completions", json={**body, "stream": True}))
    found = {choice["index"]: choice["text"] for chunk in streamed for choice in chunk["choices"]}
    assert found == dict(enumerate(texts))
    assert len({generation.request_id for generation in gateway.generations}) == 4


@pytest.mark.parametrize(
    ("fields", "salt"), [({}, ""), ({"cache_salt": None}, ""), ({"cache_salt": "x" * 256}, "x" * 256)]
)
async def test_the_salt_of_the_cache_goes_with_every_prompt(
    client: httpx.AsyncClient, gateway: ScriptedGateway, fields: dict[str, Any], salt: str
) -> None:
    body = {"model": MODEL, "prompt": ["Hi", "Ho"], **fields}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert [generation.cache_salt for generation in gateway.generations] == [salt, salt]


async def test_failure_of_one_of_several_prompts_fails_the_request(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    def fail_second(generation: Generation) -> list[Any]:
        return [EngineFailure("it broke")] if generation.prompt_ids == [2] else [ChoiceDelta(0, "fine", 1, "stop")]

    gateway.script = fail_second
    response = await client.post("/v1/completions", json={"model": MODEL, "prompt": [[1], [2]]})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_error"
    assert gateway.num_closed >= 2


async def test_what_the_gateway_is_asked_for(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    await client.post(
        "/v1/chat/completions",
        json={
            **CHAT,
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "min_p": 0.1,
            "seed": -1,
            "stop": ["a", "b", "a"],
            "stop_token_ids": [5, 5, 6],
            "ignore_eos": True,
            "min_tokens": 2,
            "n": 2,
        },
    )
    (generation,) = gateway.generations
    assert generation.stop == ("a", "b")
    tenant = await Tenant.objects.aget(name="tests")
    assert generation.tenant == f"tenant:{tenant.pk}"
    assert generation.request_id.startswith("req_")
    assert len(generation.prompt_ids) == len("<user>Hi<assistant>")
    first, second = generation.params
    assert first == second
    assert (first.max_tokens, first.min_tokens, first.temperature, first.top_p) == (9, 2, 0.5, 0.9)
    assert (first.top_k, first.min_p, first.seed, first.ignore_eos) == (7, 0.1, MAX_SEED, True)
    assert first.stop_token_ids == (5, 6)


async def test_without_a_seed_each_request_draws_its_own(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    for _ in range(5):
        await client.post("/v1/completions", json=COMPLETION)
    assert len({generation.params[0].seed for generation in gateway.generations}) == 5


async def test_permit_weighs_choices_and_true_prompt_tokens(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    await client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 100, "n": 3})
    (permit,) = gateway.permits
    assert (permit.weight.sequences, permit.weight.tokens) == (3, 300)


async def test_every_response_bears_an_id_of_ours(client: httpx.AsyncClient) -> None:
    given = {"X-Request-Id": "mine"}
    answers = [await client.get(path, headers=given) for path in ("/v1/models", "/healthz", "/nowhere", "/v1/models")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 4
    assert all(value.startswith("req_") for value in ids)
    assert all(answer.headers["x-client-request-id"] == "mine" for answer in answers)


@pytest.mark.parametrize("value", [b"x" * 129, b"x" * 1_000_000, "ä".encode(), b"a\x00b", b""])
async def test_odd_client_ids_are_ignored(client: httpx.AsyncClient, value: bytes) -> None:
    answer = await client.get("/v1/models", headers=[(b"x-request-id", value)])
    assert answer.status_code == 200
    assert "x-client-request-id" not in answer.headers


async def test_health_needs_no_key_and_readiness_gives_reasons(
    application: Any, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost") as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready", "reasons": []}
        gateway.change_view(num_engines=0)
        services.drain.begin()
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert len(answer.json()["reasons"]) == 2
        assert answer.json()["error"]["code"] == "unavailable"


async def test_documentation_comes_from_this_server_alone(application: Any) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost") as client:
        page = (await client.get("/docs")).text
        assert "/static/ninja/" in page
        assert "http://" not in page
        assert "https://" not in page
        schema = (await client.get("/openapi.json")).json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/ops/v1/pools"} <= set(schema["paths"])
    post = schema["paths"]["/v1/chat/completions"]["post"]
    assert post["security"]
    assert "text/event-stream" in post["responses"]["200"]["content"]
    references = set(_references(schema))
    assert references
    for reference in references:
        assert reference.removeprefix("#/components/schemas/") in schema["components"]["schemas"]


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    return [found for value in node for found in _references(value)] if isinstance(node, list) else []
