"""Texts to token ids and back, over HTTP; and embeddings, which nobody makes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from serving.api.tokenizing import Places
from serving.contracts.errors import QueueFull
from serving.gateway.text.tokenizer import TextModel
from tests.api.conftest import CONTEXT, MODEL, ScriptedGateway
from tests.api.envelope import error_of


async def test_prompt_becomes_the_ids_that_a_completion_computes_and_comes_back(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    answer = await client.post("/tokenize", json={"model": MODEL, "prompt": "añ 🌶️"})
    assert answer.status_code == 200
    ids = answer.json()["tokens"]
    assert answer.json() == {"tokens": ids, "count": len("añ 🌶️".encode()), "max_model_len": CONTEXT}
    await client.post("/v1/completions", json={"model": MODEL, "prompt": "añ 🌶️"})
    assert gateway.generations[0].prompt_ids == ids
    back = await client.post("/detokenize", json={"model": MODEL, "tokens": ids})
    assert back.json() == {"prompt": "añ 🌶️"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "<user>hi<assistant>"),
        ({"add_generation_prompt": None, "prompt": None}, "<user>hi<assistant>"),
        ({"add_generation_prompt": False}, "<user>hi"),
        ({"tools": [], "add_special_tokens": False}, "<user>hi<assistant>"),
    ],
)
async def test_messages_are_written_by_the_models_template(
    client: httpx.AsyncClient, fields: dict[str, Any], text: str
) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    answer = await client.post("/tokenize", json={"model": MODEL, "messages": messages, **fields})
    back = await client.post("/detokenize", json={"model": MODEL, "tokens": answer.json()["tokens"]})
    assert back.json() == {"prompt": text}


async def test_nothing_has_no_tokens_and_no_tokens_are_no_text(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tokenize", json={"model": MODEL, "prompt": ""})).json()["tokens"] == []
    assert (await client.post("/detokenize", json={"model": MODEL, "tokens": []})).json() == {"prompt": ""}


async def test_texts_longer_than_the_context_go_there_and_back(client: httpx.AsyncClient) -> None:
    text = "0123456789" * 1000
    answer = await client.post("/tokenize", json={"model": MODEL, "prompt": text})
    assert answer.json()["count"] == len(text)
    back = await client.post("/detokenize", json={"model": MODEL, "tokens": answer.json()["tokens"]})
    assert back.json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"messages": [{"role": "tool", "content": "a"}]}, "messages"),
        ("/tokenize", {"prompt": "a", "extra": 1}, "extra"),
        ("/detokenize", {}, "tokens"),
        *[
            ("/detokenize", {"tokens": tokens}, "tokens")
            for tokens in ([256], [2**31], [-1], [None], ["a"], [1e99], [True], [1.0], "a", None)
        ],
    ],
)
async def test_bad_fields_are_named(client: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str) -> None:
    error = error_of(await client.post(path, json={"model": MODEL, **fields}), status=400)
    assert (error["param"] or "").split("[")[0] == param.split("[")[0]
    assert (await client.post("/tokenize", json={"model": MODEL, "prompt": "a"})).status_code == 200


async def test_ids_that_are_no_token_within_the_vocabulary_are_refused(
    client: httpx.AsyncClient, gateway: ScriptedGateway, tmp_path: Any, model_folder: Any
) -> None:
    """Models often have more rows than their tokenizer has tokens."""
    for file in model_folder.iterdir():
        (tmp_path / file.name).write_text(file.read_text().replace('"vocab_size": 256', '"vocab_size": 300'))
    larger = TextModel.load(tmp_path)
    gateway.change_view(text_model=larger)
    answer = await client.post("/detokenize", json={"model": tmp_path.name, "tokens": [255, 256]})
    assert "256" in error_of(answer, status=400)["message"]
    larger.close()


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]}), ("/v1/embeddings", {"input": "a"})],
)
async def test_models_that_do_not_exist_are_not_found(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    error = error_of(await client.post(path, json={"model": "nobody", **fields}), status=404)
    assert error["code"] == "model_not_found"


async def test_embeddings_are_refused_by_the_models_name(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{MODEL}.*makes no embeddings") as refusal:
        await sdk.embeddings.create(model=MODEL, input=["a", "b"], dimensions=8)
    assert refusal.value.param == "model"


async def test_more_texts_than_have_a_place_are_refused_until_one_is_free() -> None:
    places = Places(max_at_once=2)

    async def stay(until: asyncio.Event) -> None:
        with places.take():
            await until.wait()

    leaving = asyncio.Event()
    staying = [asyncio.create_task(stay(leaving)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull), places.take():
        raise AssertionError("there was a third place")
    leaving.set()
    await asyncio.gather(*staying)
    with places.take():
        pass
