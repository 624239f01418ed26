"""Texts to token ids and back, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from serving.api.places import Places
from serving.contracts.errors import QueueFull
from serving.gateway.text.tokenizer import TextModel
from tests.api.conftest import CONTEXT, MODEL, POOL, Connection, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of
from tests.api.pools import waiting


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
    [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})],
)
async def test_models_that_do_not_exist_are_not_found(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    error = error_of(await client.post(path, json={"model": "nobody", **fields}), status=404)
    assert error["code"] == "model_not_found"


class Clock:
    """A monotonic clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def refusal_of(places: Places, tenant_id: int) -> QueueFull:
    with pytest.raises(QueueFull) as refusal, places.take(tenant_id):
        raise AssertionError("there was a place")
    return refusal.value


def test_more_texts_than_have_a_place_are_refused_until_one_is_free() -> None:
    places = Places(max_at_once=2)
    with contextlib.ExitStack() as first, places.take(2):
        first.enter_context(places.take(1))
        refusal_of(places, 3)
        first.close()
        with places.take(3):
            refusal_of(places, 1)
    with places.take(1):
        pass


def test_one_tenant_cannot_keep_all_places() -> None:
    places = Places(max_at_once=3, max_of_tenant=2)
    with places.take(1), places.take(1):
        assert "of the tenant" in refusal_of(places, 1).message
        with places.take(2):
            refusal_of(places, 2)
    with places.take(1):
        pass


def test_who_finds_no_place_is_told_how_long_a_text_takes() -> None:
    clock = Clock()
    places = Places(max_at_once=1, monotonic=clock)
    with places.take(1):
        assert refusal_of(places, 2).retry_after_seconds == 1
        clock.seconds += 4
    with places.take(1):
        assert refusal_of(places, 2).retry_after_seconds == 4
        clock.seconds += 9
    with places.take(1):
        assert refusal_of(places, 2).retry_after_seconds == 5


async def test_a_text_that_finds_no_place_is_counted_by_its_reason(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    arrived, may_go_on = asyncio.Event(), asyncio.Event()
    arrivals = 0

    async def encode_slowly(*_: Any, **__: Any) -> list[int]:
        nonlocal arrivals
        arrivals += 1
        if arrivals == 2:
            arrived.set()
        await may_go_on.wait()
        return [1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextModel, "encode_async", encode_slowly)
        body = {"model": MODEL, "prompt": "a"}
        first = [asyncio.create_task(client.post("/tokenize", json=body)) for _ in range(2)]
        await asyncio.wait_for(arrived.wait(), 20)
        third = await client.post("/tokenize", json=body)
        may_go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*first)] == [200, 200]
    assert error_of(third, status=429)["code"] == "queue_full"
    assert third.headers["retry-after"] == "1"
    assert services.observer.rejections == ["queue_full"]


async def test_who_leaves_keeps_the_place_as_long_as_the_text_is_tokenised(
    client: httpx.AsyncClient, connect: Callable[[str, dict[str, Any]], Connection], encoding: SlowEncoding
) -> None:
    body = {"model": MODEL, "prompt": "a" * 5000}
    for _ in range(2):
        leaving = connect("/tokenize", body)
        await encoding.has_begun()
        leaving.go_away()
    refused = await client.post("/tokenize", json=body)
    assert error_of(refused, status=429)["code"] == "queue_full"
    encoding.may_end.set()


async def test_who_leaves_keeps_the_permit_as_long_as_the_prompt_is_tokenised(
    client: httpx.AsyncClient,
    services: ScriptedServices,
    connect: Callable[[str, dict[str, Any]], Connection],
    encoding: SlowEncoding,
) -> None:
    leaving = connect("/v1/completions", {"model": MODEL, "prompt": "a" * 5000})
    await encoding.has_begun()
    leaving.go_away()
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert await waiting(services, POOL) == 1
    encoding.may_end.set()
    await asyncio.wait_for(leaving.task, 20)
    assert await waiting(services, POOL) == 0
    assert services.observer.outcomes == ["aborted"]


class SlowEncoding:
    """Texts whose tokenising has begun wait, on their threads, until they may end."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def wait(self) -> None:
        self._begun.release()
        self.may_end.wait(20)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, timeout=20)


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowEncoding]:
    slow, encode = SlowEncoding(), TextModel.encode

    def encode_slowly(model: TextModel, text: str, **options: Any) -> list[int]:
        slow.wait()
        return encode(model, text, **options)

    monkeypatch.setattr(TextModel, "encode", encode_slowly)
    yield slow
    slow.may_end.set()
