"""Embeddings over HTTP and through the official client: OpenAI's shape, and the same door as for texts."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from serving.api.text_schemas import MAX_INPUTS
from serving.contracts.errors import DomainError, EngineFailure, QueueTimeout
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.gateway.generation import ChoiceDelta
from serving.gateway.text.tokenizer import TextModel
from tests.api.conftest import (
    CONTEXT,
    DIMENSIONS,
    MODEL,
    POOL,
    Connection,
    ScriptedGateway,
    ScriptedServices,
    vector_of,
)
from tests.api.envelope import error_of
from tests.api.test_quotas import bound, limits_of
from tests.gateway.harness import eventually

PATH = "/v1/embeddings"
BODY: dict[str, Any] = {"model": MODEL, "input": "Hi"}


def numbers_of(prompt_ids: list[int]) -> list[float]:
    """What the scripted gateway makes of a prompt."""
    return list(struct.unpack(f"<{DIMENSIONS}f", vector_of(prompt_ids)))


def encode(text_model: TextModel, text: str) -> list[int]:
    return text_model.encode(text, add_special_tokens=True)


# --- answers ---


async def test_answer_has_openais_shape_and_says_what_it_is(client: httpx.AsyncClient, text_model: TextModel) -> None:
    response = await client.post(PATH, json={**BODY, "input": ["Hi", "Zwö"]})
    assert response.status_code == 200, response.text
    assert response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": numbers_of(encode(text_model, "Hi"))},
            {"object": "embedding", "index": 1, "embedding": numbers_of(encode(text_model, "Zwö"))},
        ],
        "model": MODEL,
        "pooling": "mean",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }
    assert response.headers["x-footplate-pool"] == POOL


@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_numbers_are_the_same_in_either_encoding(
    sdk: openai.AsyncOpenAI, text_model: TextModel, encoding: Any
) -> None:
    """The official client asks for base64 where nothing is asked of it."""
    given = openai.omit if encoding is None else encoding
    answer = await sdk.embeddings.create(model=MODEL, input=["a", "b"], encoding_format=given, user="me")
    expected = [numbers_of(encode(text_model, text)) for text in "ab"]
    found: list[Any] = [each.embedding for each in answer.data]
    if encoding == "base64":
        found = [list(struct.unpack(f"<{DIMENSIONS}f", base64.b64decode(text))) for text in found]
    assert found == expected
    assert [each.index for each in answer.data] == [0, 1]


@pytest.mark.parametrize(
    ("given", "texts"),
    [("Hi", ["Hi"]), (["Hi"], ["Hi"]), (["Hi", "H", "Hi"], ["Hi", "H", "Hi"]), ("añ 🌶️", ["añ 🌶️"])],
)
async def test_texts_and_their_token_ids_are_embedded_alike(
    client: httpx.AsyncClient, gateway: ScriptedGateway, text_model: TextModel, given: Any, texts: list[str]
) -> None:
    as_ids = encode(text_model, given) if isinstance(given, str) else [encode(text_model, text) for text in given]
    answers = [(await client.post(PATH, json={**BODY, "input": kind})).json() for kind in (given, as_ids)]
    assert answers[0] == answers[1]
    prompts = [generation.prompt_ids for generation in gateway.generations]
    assert prompts == [encode(text_model, text) for text in texts] * 2
    assert {generation.params for generation in gateway.generations} == {
        (SamplingParams(max_tokens=0, seed=0, embeds=True),)
    }
    assert len({generation.request_id for generation in gateway.generations}) == 2 * len(texts)


async def test_inputs_stand_in_their_order_whichever_is_ready_first(
    client: httpx.AsyncClient, gateway: ScriptedGateway, text_model: TextModel
) -> None:
    gateway.holds = True
    asking = asyncio.create_task(client.post(PATH, json={**BODY, "input": list("abcde")}))
    await eventually(lambda: len(gateway.streams) == 5)
    for index in (3, 0, 4, 1, 2):
        gateway.play(index)
    data = (await asking).json()["data"]
    assert [each["index"] for each in data] == [0, 1, 2, 3, 4]
    assert [each["embedding"] for each in data] == [numbers_of(encode(text_model, letter)) for letter in "abcde"]


@pytest.mark.parametrize("field", ["dimensions", "encoding_format", "user", "pool"])
async def test_null_is_as_if_absent(client: httpx.AsyncClient, field: str) -> None:
    plain = await client.post(PATH, json=BODY)
    assert (await client.post(PATH, json={**BODY, field: None})).json() == plain.json()


async def test_a_text_fills_the_context_and_no_more(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    assert (await client.post(PATH, json={**BODY, "input": "a" * CONTEXT})).status_code == 200
    for kind in ("a" * (CONTEXT + 1), [64] * (CONTEXT + 1), ["a", "a" * (CONTEXT + 1)]):
        error = error_of(await client.post(PATH, json={**BODY, "input": kind}), status=400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
        assert str(CONTEXT) in error["message"]
    assert len(gateway.generations) == 1


async def test_vectors_have_the_models_own_length(
    client: httpx.AsyncClient, gateway: ScriptedGateway, model_folder: Any, tmp_path: Any
) -> None:
    assert (await client.post(PATH, json={**BODY, "dimensions": DIMENSIONS})).status_code == 200
    error = error_of(await client.post(PATH, json={**BODY, "dimensions": 4}), status=400)
    assert error["param"] == "dimensions"
    assert f"or {DIMENSIONS}" in error["message"]
    folder = tmp_path / MODEL
    folder.mkdir()
    for file in model_folder.iterdir():
        (folder / file.name).write_text(file.read_text().replace(f', "hidden_size": {DIMENSIONS}', ""))
    silent = TextModel.load(folder)
    gateway.change_view(text_model=silent)
    error = error_of(await client.post(PATH, json={**BODY, "dimensions": DIMENSIONS}), status=400)
    assert error["param"] == "dimensions"
    silent.close()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *[
            ({"input": value}, "input")
            for value in ("", [], [""], [[]], ["a", ""], ["a", 1], [1, "a"], [[1], "a"], [[[1]]], {}, 5, True, None)
        ],
        *[({"input": value}, "input") for value in ([256], [-1], [1.0], [True], [2**31], [[1], [256]])],
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        *[({"dimensions": value}, "dimensions") for value in (0, -1, "8", 8.0, True, 2**31)],
        *[({"encoding_format": value}, "encoding_format") for value in ("hex", "", 1, ["float"])],
        ({"user": 5}, "user"),
        *[({"pool": value}, "pool") for value in ("nobody's", "", "\0", 5)],
        *[({name: 1}, name) for name in ("max_tokens", "prompt", "stream", "n", "truncate")],
    ],
)
async def test_bad_fields_are_named(
    client: httpx.AsyncClient, gateway: ScriptedGateway, fields: dict[str, Any], param: str
) -> None:
    error = error_of(await client.post(PATH, json={**BODY, **fields}), status=400)
    assert (error["param"] or "").split("[")[0] == param
    assert not gateway.generations


async def test_a_model_that_does_not_exist_is_not_found(client: httpx.AsyncClient) -> None:
    error = error_of(await client.post(PATH, json={**BODY, "model": "nobody"}), status=404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


# --- the door ---


async def test_quotas_count_the_prompt_and_no_answer(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    await bound(client, tokens_per_minute=9, max_output_tokens=1, max_prompt_tokens=5)
    answer = await client.post(PATH, json={**BODY, "input": ["hello", "abc"]})
    assert answer.status_code == 200, answer.text
    assert limits_of(answer)["remaining-tokens"] == "1"
    assert [permit.weight.charged_tokens for permit in services.gateway.permits] == [5, 3]
    error = error_of(await client.post(PATH, json={**BODY, "input": "hi"}), status=429)
    assert error["code"] == "rate_limit_exceeded"
    assert (await client.post(PATH, json={**BODY, "input": "h"})).status_code == 200
    error = error_of(await client.post(PATH, json={**BODY, "input": [1] * 6}), status=400)
    assert error["code"] == "prompt_too_long"


async def test_inputs_wait_and_are_cached_under_their_tenants_name(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    """As its texts are, and count from when the request came."""
    began = time.monotonic()
    assert (await client.post(PATH, json={**BODY, "input": ["a", "b"]})).status_code == 200
    assert (await client.post("/v1/completions", json={"model": MODEL, "prompt": "a"})).status_code == 200
    *embedded, text = gateway.generations
    assert {each.tenant for each in embedded} == {text.tenant}
    assert all(began <= each.arrived_at <= time.monotonic() for each in embedded)


async def test_each_input_is_a_request_that_waits_for_itself(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    gateway.change_view(tunables=Tunables(max_queue_requests=3))
    error = error_of(await client.post(PATH, json={**BODY, "input": ["a"] * 4}), status=429)
    assert error["code"] == "queue_full"
    assert services.observer.outcomes == ["refused:queue_full"]
    assert (await client.post(PATH, json={**BODY, "input": ["a"] * 3})).status_code == 200


async def test_as_many_inputs_as_may_be_are_let_in_at_once(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    answer = await client.post(PATH, json={**BODY, "input": [[index] for index in range(MAX_INPUTS)]})
    assert [each["embedding"] for each in answer.json()["data"]] == [numbers_of([i]) for i in range(MAX_INPUTS)]
    assert len(gateway.permits) == MAX_INPUTS


async def test_who_drains_or_has_no_engine_lets_nothing_in(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    gateway.change_view(num_engines=0)
    error_of(await client.post(PATH, json=BODY), status=503)
    gateway.change_view(num_engines=1)
    services.drain.begin()
    error_of(await client.post(PATH, json=BODY), status=503)
    assert not gateway.generations


@pytest.mark.parametrize(
    ("failure", "status"), [(QueueTimeout("too long"), 408), (EngineFailure("broken"), 500), (None, 500)]
)
async def test_a_failure_of_one_input_is_the_failure_of_all(
    client: httpx.AsyncClient, gateway: ScriptedGateway, failure: DomainError | None, status: int
) -> None:
    """An engine that says nothing but that it is done has failed as well."""
    gateway.script = lambda generation: (
        [failure or ChoiceDelta(0, "", 0, "stop")]
        if generation.prompt_ids == [2]
        else [ChoiceDelta(0, "", 0, "stop", embedding=vector_of(generation.prompt_ids))]
    )
    error_of(await client.post(PATH, json={**BODY, "input": [[1], [2], [3]]}), status=status)
    await eventually(lambda: gateway.num_closed >= 3)


async def test_who_goes_away_ends_all_of_it(
    connect: Callable[[str, dict[str, Any]], Connection], gateway: ScriptedGateway
) -> None:
    gateway.holds = True
    connection = connect(PATH, {**BODY, "input": ["a", "b", "c"]})
    await eventually(lambda: len(gateway.streams) == 3)
    await connection.leave()
    assert gateway.num_closed >= 3
