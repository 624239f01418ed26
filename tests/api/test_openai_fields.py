"""OpenAI's own list of parameters, as its client has them typed: each is supported, harmless, or refused by name."""

from __future__ import annotations

import typing
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params as completion_params
from openai.types import embedding_create_params as embedding_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.chat.chat_completion_stream_options_param import ChatCompletionStreamOptionsParam
from pydantic import BaseModel

from serving.api.compatibility import LABELS, NEUTRAL_VALUES
from serving.api.schemas import ChatCompletionRequest, CompletionRequest, StreamOptions
from serving.api.text_schemas import EmbeddingsRequest
from tests.api.conftest import MODEL, ScriptedGateway
from tests.api.envelope import error_of

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
ENDPOINTS: dict[str, tuple[dict[str, Any], type[BaseModel], Any]] = {
    "/v1/chat/completions": (CHAT, ChatCompletionRequest, chat_params),
    "/v1/completions": (COMPLETION, CompletionRequest, completion_params),
}
REFUSED_VALUES: dict[str, Any] = {
    "audio": {"format": "wav", "voice": "alloy"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"ttl": "30m"},
    "reasoning_effort": "high",
    "store": True,
    "suffix": "x",
    "verbosity": "low",
    "web_search_options": {},
}
"""For each field that has no effect here, a value that asks for one."""


def fields_of(params: Any) -> set[str]:
    both = (params.CompletionCreateParamsStreaming, params.CompletionCreateParamsNonStreaming)
    return {name for kind in both for name in typing.get_type_hints(kind)}


CASES = [(path, field) for path, (_, _, params) in ENDPOINTS.items() for field in sorted(fields_of(params))]


def test_the_lists_of_both_endpoints_are_found() -> None:
    assert {"messages", "tools", "stream", "temperature"} <= fields_of(chat_params)
    assert {"prompt", "best_of", "echo", "stream"} <= fields_of(completion_params)


@pytest.mark.parametrize(("path", "field"), CASES)
def test_every_parameter_of_openais_is_known(path: str, field: str) -> None:
    """A new one in a newer client fails here by its name."""
    _, model, _ = ENDPOINTS[path]
    assert field in model.model_fields or field in {*LABELS, "metadata"} or field in NEUTRAL_VALUES


@pytest.mark.parametrize(("path", "field"), CASES)
async def test_null_is_as_if_absent_for_every_optional_parameter(
    client: httpx.AsyncClient, path: str, field: str
) -> None:
    body, model, _ = ENDPOINTS[path]
    if field in model.model_fields and model.model_fields[field].is_required():
        error_of(await client.post(path, json={**body, field: None}), status=400)
    else:
        answer = await client.post(path, json={**body, field: None})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (path, field)
        for path, field in CASES
        if field in NEUTRAL_VALUES and field not in ENDPOINTS[path][1].model_fields
    ],
)
async def test_what_has_no_effect_here_is_taken_where_it_asks_for_none_and_refused_by_name_where_it_does(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, field: str
) -> None:
    body, _, _ = ENDPOINTS[path]
    for value in NEUTRAL_VALUES[field]:
        assert (await client.post(path, json={**body, field: value})).status_code == 200
    served = len(gateway.generations)
    error = error_of(await client.post(path, json={**body, field: REFUSED_VALUES[field]}), status=400)
    assert (error["param"], error["code"]) == (field, "unsupported_field")
    assert len(gateway.generations) == served


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("logit_bias", {}), ("stop", []), ("metadata", {}), ("user", ""), ("stop_token_ids", []), ("functions", [])],
        *[("tools", []), ("stream_options", {}), ("modalities", []), ("cache_salt", ""), ("prompt_cache_options", {})],
    ],
)
async def test_empty_is_as_if_absent(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, field: str, value: Any
) -> None:
    body, _, _ = ENDPOINTS[path]
    for fields in ({}, {field: value}):
        answer = await client.post(path, json={**body, "seed": 5, **fields})
        assert answer.status_code == 200, answer.text
    plain, empty = gateway.generations
    assert (plain.params, plain.stop, plain.prompt_ids) == (empty.params, empty.stop, empty.prompt_ids)


async def test_chunks_are_padded_for_nobody(client: httpx.AsyncClient) -> None:
    assert set(typing.get_type_hints(ChatCompletionStreamOptionsParam)) <= set(StreamOptions.model_fields)
    for value, status in ((False, 200), (None, 200), (True, 400)):
        body = {**CHAT, "stream": True, "stream_options": {"include_obfuscation": value}}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == status


EMBEDDING_FIELDS = sorted(typing.get_type_hints(embedding_params.EmbeddingCreateParams))


def test_every_parameter_of_embeddings_is_known() -> None:
    assert set(EMBEDDING_FIELDS) <= set(EmbeddingsRequest.model_fields)


@pytest.mark.parametrize("field", EMBEDDING_FIELDS)
async def test_null_is_as_if_absent_for_every_optional_parameter_of_embeddings(
    client: httpx.AsyncClient, field: str
) -> None:
    is_required = EmbeddingsRequest.model_fields[field].is_required()
    answer = await client.post("/v1/embeddings", json={"model": MODEL, "input": "Hi", field: None})
    assert answer.status_code == (400 if is_required else 200), answer.text
