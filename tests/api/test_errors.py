"""What is refused, and how: one envelope, a true status, the field to blame, and nothing of our insides."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from serving.admission.door import Weight
from serving.contracts.errors import EngineFailure, QueueTimeout, Unavailable
from serving.contracts.tunables import Tunables
from serving.gateway.generation import Generation
from tests.api.conftest import CONTEXT, MODEL, POOL, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of

QUESTION = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": QUESTION}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
BAD_FIELDS: list[tuple[str, Any]] = [
    *[("temperature", value) for value in ("1", True, -0.1, 2.0001, "nan", [], {})],
    *[("top_p", value) for value in (-0.1, 1.1, "1", False)],
    *[("min_p", value) for value in (-0.1, 1.1)],
    *[("top_k", value) for value in (-2, 1.5, "5", True, 2**31)],
    *[("max_tokens", value) for value in (0, -1, 1.5, "5", True, 2**31)],
    *[("min_tokens", value) for value in (-1, 1.0, "1")],
    *[("n", value) for value in (0, -1, 17, 1_000_000, "2", True, 1.0)],
    *[("seed", value) for value in (2**63, -(2**63) - 1, 1.5, "1", True)],
    *[("stop", value) for value in ("", [""], ["a"] * 5, "x" * 100_000, [1], 1, [None], {})],
    *[("stop_token_ids", value) for value in ([None], ["x"], [-1], [1e99], [True], [256], [1] * 129, 5)],
    *[("ignore_eos", value) for value in (1, "true")],
    *[("stream", value) for value in (1, "true")],
    *[
        ("stream_options", value)
        for value in ([], "x", {"include_usage": 1}, {"unknown": True}, {"include_usage": True})
    ],
    *[
        ("logit_bias", value)
        for value in (
            *({"999999": 5}, {"256": 1}, {"-1": 1}, {"abc": 1}, {"05": 1}, {" 5": 1}, {"5": 101}, {"5": "x"}, []),
            *({"5": True}, {"5": None}, {str(index): 1 for index in range(1025)}, {"9" * 5000: 1}, {"\u0665": 1}),
        )
    ],
    *[("best_of", value) for value in (999, 17, 0, -1, True, "2", 2.0)],
    *[("presence_penalty", value) for value in (2.1, -2.1, False, "0", "nan")],
    *[("frequency_penalty", value) for value in (2.0001, -3, True, "1", [])],
    *[("repetition_penalty", value) for value in (0, -1, 10.1, True, "1")],
    *[("logprobs", value) for value in (-1, 21, 100_000, 1.5, "5", True, False)],
    *[("prompt_logprobs", value) for value in (-1, 21, 1.0, "1", True)],
    *[("priority", value) for value in (-101, 101, 0.5, "1", True)],
    *[("cache_salt", value) for value in (1, "x" * 257, ["x"], True)],
    ("top_logprobs", 1),
    *[("response_format", value) for value in ({"type": "json_schema", "schema": {}}, {"type": "x"}, [])],
    *[("echo", value) for value in (1, 0, "true")],
    *[("suffix", value) for value in ("x",)],
    *[("user", value) for value in (5, "x" * 513)],
    *[("metadata", value) for value in ("x",)],
    ("no_such_field", 1),
    ("no_such_field", None),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=lambda value: repr(value)[:40])
async def test_bad_value_is_refused_by_name_and_reaches_nobody(
    client: httpx.AsyncClient, gateway: ScriptedGateway, field: str, value: Any
) -> None:
    error = error_of(await client.post("/v1/completions", json={**COMPLETION, field: value}), status=400)
    assert error["param"] is not None
    assert error["param"].split(".")[0].split("[")[0] == field
    assert field in error["message"]
    assert not gateway.generations


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999"])
async def test_numbers_that_json_does_not_know_are_refused(client: httpx.AsyncClient, number: str) -> None:
    content = f'{{"model": "{MODEL}", "prompt": "Hi", "temperature": {number}}}'
    response = await client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert error_of(response, status=400)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", None),
        ("stop", []),
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 0),
        ("top_k", 0),
        ("top_k", -1),
        ("top_k", 257),
        ("max_tokens", 1),
        ("seed", -(2**63)),
        ("presence_penalty", 0.0),
        ("logit_bias", {}),
        ("logit_bias", {"0": -100, "255": 100.0}),
        ("frequency_penalty", -2),
        ("repetition_penalty", 1),
        ("priority", -100),
        ("cache_salt", ""),
        ("best_of", 1),
        ("echo", False),
        ("store", False),
        ("logprobs", None),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("user", "someone"),
        ("metadata", {"a": "b"}),
        ("service_tier", "auto"),
        ("stream_options", None),
    ],
)
async def test_null_and_neutral_values_are_as_if_absent(client: httpx.AsyncClient, field: str, value: Any) -> None:
    assert (await client.post("/v1/completions", json={**COMPLETION, field: value})).status_code == 200


@pytest.mark.parametrize(
    "field", ["logprobs", "top_logprobs", "tools", "functions", "modalities", "prediction", "max_completion_tokens"]
)
async def test_unsupported_fields_of_chat_are_refused_by_name(client: httpx.AsyncClient, field: str) -> None:
    error = error_of(await client.post("/v1/chat/completions", json={**CHAT, field: "x"}), status=400)
    assert error["param"] == field


@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], None, [None], ["a", 1], [[1], "a"], [256], [[-1]], ["a"] * 17, 5]
)
async def test_empty_and_odd_prompts_are_refused(client: httpx.AsyncClient, prompt: Any) -> None:
    error = error_of(await client.post("/v1/completions", json={"model": MODEL, "prompt": prompt}), status=400)
    assert error["param"] == "prompt"
    assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200


IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        ([1], "messages"),
        ([{"role": "x", "content": "Hi"}], "messages[0].role"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "Hi"}, {"role": "user", "content": [IMAGE]}], "messages[1].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "Hi", "audio": {}}], "messages[0].audio"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "tool", "content": "5"}], "messages"),
    ],
)
async def test_odd_messages_are_refused_where_they_are_odd(
    client: httpx.AsyncClient, messages: Any, param: str
) -> None:
    response = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
    assert error_of(response, status=400)["param"] == param


async def test_templates_own_reason_is_told(client: httpx.AsyncClient) -> None:
    messages = [{"role": "tool", "content": "5"}]
    response = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
    assert "a tool cannot speak first" in error_of(response, status=400)["message"]


async def test_conversation_with_a_tool_reaches_the_template_whole(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
        {"role": "user", "content": "So?"},
    ]
    response = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
    assert response.status_code == 200
    text = gateway.view.text_model.decode(gateway.generations[0].prompt_ids)
    assert text == "<system>Be\nbrief<user><assistant>[add]<tool>4<user>So?<assistant>"


@pytest.mark.parametrize(
    ("path", "body", "numbers"),
    [
        ("/v1/completions", {"prompt": "x" * 300, "max_tokens": 213}, (512, 300, 213, 513)),
        ("/v1/completions", {"prompt": "x" * 8, "max_tokens": 505}, (512, 8, 505, 513)),
        ("/v1/completions", {"prompt": "x" * 600}, (512, 600)),
        ("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 500}, (512, 19, 500, 519)),
        ("/v1/chat/completions", {"messages": QUESTION, "max_completion_tokens": 500}, (512, 19, 500, 519)),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 600}]}, (512, 617)),
    ],
)
async def test_prompt_and_answer_must_fit_the_context_together(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, body: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    error = error_of(await client.post(path, json={"model": MODEL, **body}), status=400)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] in {"prompt", "messages"}
    assert all(str(number) in error["message"] for number in numbers)
    assert not gateway.generations


async def test_exactly_the_context_fits_and_chat_takes_the_rest(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    assert (await client.post("/v1/completions", json={**COMPLETION, "max_tokens": 510})).status_code == 200
    await client.post("/v1/completions", json=COMPLETION)
    await client.post("/v1/chat/completions", json=CHAT)
    wanted = [generation.params[0].max_tokens for generation in gateway.generations]
    assert wanted == [510, 16, CONTEXT - len("<user>Hi<assistant>")]


async def test_kv_pool_smaller_than_the_context_is_the_limit(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    gateway.change_view(max_model_len=96)
    response = await client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 90, "max_tokens": 7})
    assert "96" in error_of(response, status=400)["message"]
    response = await client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 90, "max_tokens": 6})
    assert response.status_code == 200
    assert (await client.get(f"/v1/models/{MODEL}")).json()["max_model_len"] == 96


async def test_min_tokens_stay_within_max_tokens(client: httpx.AsyncClient) -> None:
    body = {**COMPLETION, "max_tokens": 4, "min_tokens": 5}
    assert error_of(await client.post("/v1/completions", json=body), status=400)["param"] == "min_tokens"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"prompt": "\\ud800"}'])
async def test_bodies_that_are_no_json_object_are_refused(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert error_of(response, status=400)["type"] == "invalid_request_error"


async def test_other_content_types_are_refused(client: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        response = await client.post("/v1/completions", content=json.dumps(COMPLETION), headers={"Content-Type": kind})
        assert error_of(response, status=415)["code"] == "unsupported_media_type"
    headers = {"Content-Type": "application/json; charset=utf-8"}
    response = await client.post("/v1/completions", content=json.dumps(COMPLETION), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere", "/ops/v1/nowhere", "/v1/completions/", "/v1", "/%00"])
async def test_unknown_paths_are_not_found(client: httpx.AsyncClient, path: str) -> None:
    error_of(await client.get(path), status=404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", {"POST"}),
        ("DELETE", "/v1/models", {"GET"}),
        ("POST", "/healthz", {"GET"}),
        ("PUT", "/ops/v1/pools/default/tunables", {"GET", "PATCH"}),
    ],
)
async def test_other_methods_are_refused_with_those_allowed(
    client: httpx.AsyncClient, method: str, path: str, allowed: set[str]
) -> None:
    response = await client.request(method, path)
    error_of(response, status=405)
    assert {name.strip() for name in response.headers["allow"].split(",")} >= allowed


async def test_body_beyond_the_limit_is_too_large(client: httpx.AsyncClient, settings: Any) -> None:
    response = await client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 3_000_000})
    assert error_of(response, status=413)["code"] == "request_too_large"


async def test_unknown_model_is_named(client: httpx.AsyncClient) -> None:
    for response in (
        await client.post("/v1/completions", json={**COMPLETION, "model": "other"}),
        await client.get("/v1/models/other"),
        await client.get("/v1/models/some/other"),
    ):
        error = error_of(response, status=404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "other" in error["message"]


async def test_exceptions_of_ours_are_logged_and_not_told(
    client: httpx.AsyncClient, gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    def break_down(generation: Generation) -> list[Any]:
        raise RuntimeError("a secret in /tmp/serving.py")

    gateway.script = break_down
    for debug in (False, True):
        settings.DEBUG = debug
        error = error_of(await client.post("/v1/completions", json=COMPLETION), status=500)
        assert error["code"] == "internal_error"
    assert "a secret" in caplog.text


# --- overload ---


async def test_full_queue_is_refused_before_anything_is_tokenised(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway, sdk: openai.AsyncOpenAI
) -> None:
    gateway.change_view(tunables=Tunables(max_queue_requests=15, urgent_queue_ratio=0))
    response = await client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 600, "n": 16})
    assert error_of(response, status=429)["code"] == "queue_full"
    assert int(response.headers["retry-after"]) >= 1
    with pytest.raises(openai.RateLimitError):
        await sdk.completions.create(model=MODEL, prompt="x", n=16)
    assert (await client.post("/v1/completions", json={**COMPLETION, "n": 15})).status_code == 200
    assert services.observer.outcomes == ["refused:queue_full"] * 2
    assert services.observer.num_submitted == 2


async def test_what_is_refused_after_the_door_gives_its_place_back(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    gateway.change_view(tunables=Tunables(max_queue_requests=1))
    for _ in range(3):
        error = error_of(await client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 600}), status=400)
        assert error["code"] == "context_length_exceeded"
    (permit,) = await services.door.enter(POOL, [Weight(1, 1)], tunables=gateway.view.tunables)
    await services.door.release(permit)
    assert services.observer.outcomes == ["refused:context_length_exceeded"] * 3


async def test_draining_and_missing_engines_are_unavailable(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    gateway.change_view(num_engines=0)
    for _ in range(2):
        response = await client.post("/v1/completions", json={**COMPLETION, "stream": True})
        assert error_of(response, status=503)["code"] == "unavailable"
        assert int(response.headers["retry-after"]) >= 1
        gateway.change_view(num_engines=1)
        services.drain.begin()
    assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"), [(QueueTimeout("too long"), 408), (Unavailable("gone"), 503), (EngineFailure("broke"), 500)]
)
async def test_failure_before_the_start_has_its_own_status(
    client: httpx.AsyncClient, gateway: ScriptedGateway, error: Any, status: int, stream: bool
) -> None:
    gateway.script = lambda _: [error]
    response = await client.post("/v1/completions", json={**COMPLETION, "stream": stream})
    assert error_of(response, status=status)["code"] == error.code
    assert ("retry-after" in response.headers) == (status != 500)


async def test_answers_sent_back_by_the_official_client_are_taken(
    sdk: openai.AsyncOpenAI, gateway: ScriptedGateway
) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=QUESTION)  # type: ignore[arg-type]
    conversation: Any = [*QUESTION, answer.choices[0].message.model_dump(), {"role": "user", "content": "More"}]
    await sdk.chat.completions.create(model=MODEL, messages=conversation)
    text = gateway.view.text_model.decode(gateway.generations[1].prompt_ids)
    assert text == "<user>Hi<assistant>Hello 0<user>More<assistant>"
