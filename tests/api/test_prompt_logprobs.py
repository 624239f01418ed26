"""Echoes of prompts, and how probable their tokens were: in OpenAI's shape (after an echo) and in vLLM's."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from serving.api.mapping import MAX_TOLD_OF_PROMPTS
from serving.gateway.text.token_spelling import Spelling, TokenSpeller
from tests.api.conftest import CONTEXT, MODEL, ScriptedGateway
from tests.api.envelope import error_of
from tests.api.telling import CHAT, COMPLETION, CONTENT, EURO, let_tell
from tests.api.test_answers import events_of


@pytest.fixture
def scripted(gateway: ScriptedGateway) -> ScriptedGateway:
    """Says "a€", and tells what each request asks for."""
    let_tell(gateway)
    return gateway


async def test_echo_begins_each_text_with_its_prompt(client: httpx.AsyncClient, scripted: ScriptedGateway) -> None:
    body = {"model": MODEL, "prompt": ["One", "Zwö"], "n": 2, "echo": True}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Onea€", "Onea€", "Zwöa€", "Zwöa€"]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert scripted.generations[0].params[0].num_prompt_logprobs is None
    ids = {"model": MODEL, "prompt": [[32, 33]], "echo": True}
    text = scripted.view.text_model.decode([32, 33])
    assert (await client.post("/v1/completions", json=ids)).json()["choices"][0]["text"] == text + "a€"


async def test_echo_tells_of_the_prompt_first(client: httpx.AsyncClient, scripted: ScriptedGateway) -> None:
    answer = (await client.post("/v1/completions", json={**COMPLETION, "echo": True, "logprobs": 1})).json()
    (choice,) = answer["choices"]
    found = choice["logprobs"]
    assert choice["text"] == "Hia€"
    assert found["tokens"] == ["H", "i", *[name for name, _, _ in CONTENT]]
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert found["text_offset"] == [0, 1, 2, 3, 3, 3, 4]
    assert len(found["token_logprobs"]) == len(found["top_logprobs"]) == 7
    assert "prompt_logprobs" not in choice


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_of_no_answer_is_the_prompt_with_its_logprobs(
    client: httpx.AsyncClient, scripted: ScriptedGateway, stream: bool
) -> None:
    body = {**COMPLETION, "prompt": "Hi€", "echo": True, "max_tokens": 0, "logprobs": 1, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    response = await client.post("/v1/completions", json=body)
    parts = events_of(response) if stream else [response.json()]
    choices = [choice for part in parts for choice in part["choices"]]
    assert "".join(choice["text"] for choice in choices) == "Hi€"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    names = ["H", "i", *[f"bytes:\\x{byte:02x}" for byte in EURO]]
    assert [name for choice in choices for name in choice["logprobs"]["tokens"]] == names
    assert [place for choice in choices for place in choice["logprobs"]["text_offset"]] == [0, 1, 2, 2, 2]
    usage = parts[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 0, 5)
    assert scripted.generations[0].params[0].max_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_of_one_token_is_echoed_and_told_of(
    client: httpx.AsyncClient, scripted: ScriptedGateway, stream: bool
) -> None:
    text = scripted.view.text_model.decode([72])
    body = {**COMPLETION, "prompt": [72], "echo": True, "logprobs": 1}
    response = await client.post("/v1/completions", json={**body, "stream": stream})
    choices = [choice for part in (events_of(response) if stream else [response.json()]) for choice in part["choices"]]
    assert "".join(choice["text"] for choice in choices) == text + "a€"
    assert choices[0]["logprobs"]["tokens"][0] == text
    assert choices[0]["logprobs"]["token_logprobs"][0] is None
    answer = (await client.post("/v1/completions", json={**COMPLETION, "prompt": [72], "prompt_logprobs": 1})).json()
    assert answer["choices"][0]["prompt_logprobs"] == [None]


async def test_an_echo_of_no_answer_says_what_it_needs_where_the_prompt_fills_the_context(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    body = {**COMPLETION, "echo": True, "max_tokens": 0, "prompt": [72] * CONTEXT}
    error = error_of(await client.post("/v1/completions", json=body), status=400)
    assert error["code"] == "context_length_exceeded"
    assert f"at most {CONTEXT - 1} tokens" in error["message"]
    assert "for the completion" not in error["message"]
    assert (await client.post("/v1/completions", json={**body, "prompt": [72] * (CONTEXT - 1)})).status_code == 200
    assert len(gateway.generations) == 1


async def test_no_tokens_without_an_echo_are_refused(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    for fields in ({}, {"echo": False}, {"echo": None, "logprobs": 1}):
        response = await client.post("/v1/completions", json={**COMPLETION, "max_tokens": 0, **fields})
        assert error_of(response, status=400)["param"] == "max_tokens"
    for value in (-1, 1.5, "5", True):
        response = await client.post("/v1/completions", json={**COMPLETION, "max_tokens": value, "echo": True})
        assert error_of(response, status=400)["param"] == "max_tokens"
    assert not gateway.generations


# --- prompts ---


async def test_prompts_tokens_are_told_by_id_as_vllm_does(client: httpx.AsyncClient, scripted: ScriptedGateway) -> None:
    h, i = scripted.view.text_model.encode("Hi", add_special_tokens=False)
    answer = (await client.post("/v1/completions", json={**COMPLETION, "prompt_logprobs": 2})).json()
    assert answer["choices"][0]["prompt_logprobs"] == [
        None,
        {
            str(i): {"logprob": -0.1, "rank": 1, "decoded_token": "i"},
            "7": {"logprob": -0.2, "rank": 2, "decoded_token": scripted.view.text_model.speller.spell(7).name},
        },
    ]
    assert answer["choices"][0]["logprobs"] is None
    chat = (await client.post("/v1/chat/completions", json={**CHAT, "prompt_logprobs": 0})).json()
    assert len(chat["prompt_logprobs"]) == len("<user>Hi<assistant>")
    assert h != i


async def test_a_prompt_is_asked_of_once_and_told_to_each_choice(
    client: httpx.AsyncClient, scripted: ScriptedGateway
) -> None:
    """Whichever of its choices says something first."""
    say = scripted.script
    scripted.script = lambda generation: sorted(say(generation), key=lambda delta: -delta.choice)  # type: ignore[union-attr]
    body = {**COMPLETION, "prompt": ["Hi", "You"], "n": 3, "prompt_logprobs": 1, "logprobs": 0}
    alone = [
        (await client.post("/v1/completions", json={**body, "prompt": prompt, "n": 1})).json()["choices"][0]
        for prompt in ("Hi", "You")
    ]
    answer = (await client.post("/v1/completions", json=body)).json()
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [
        alone[index // 3]["prompt_logprobs"] for index in range(6)
    ]
    assert [choice["text"] for choice in answer["choices"]] == ["a€"] * 6
    for generation in scripted.generations[-2:]:
        assert [params.num_prompt_logprobs for params in generation.params] == [1, None, None]
        assert {params.seed for params in generation.params} == {generation.params[0].seed}
    chat = (await client.post("/v1/chat/completions", json={**CHAT, "n": 3, "prompt_logprobs": 0})).json()
    assert len(chat["prompt_logprobs"]) == len("<user>Hi<assistant>")
    assert [params.num_prompt_logprobs for params in scripted.generations[-1].params] == [0, None, None]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [72] * 500, "n": 16, "prompt_logprobs": 20}, None),
        ({"prompt": [[72] * 500] * 2, "n": 10, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": [72] * 500, "n": 16, "echo": True, "logprobs": 20, "max_tokens": 1}, None),
        ({"prompt": [[72] * 500] * 2, "n": 10, "echo": True, "logprobs": 20, "max_tokens": 1}, "logprobs"),
        ({"prompt": [[72] * 500] * 16, "n": 14, "logprobs": 20, "max_tokens": 1}, None),
    ],
)
async def test_no_answer_tells_more_of_prompts_than_a_bound(
    client: httpx.AsyncClient, scripted: ScriptedGateway, body: dict[str, Any], param: str | None
) -> None:
    response = await client.post("/v1/completions", json={"model": MODEL, "max_tokens": 2, **body})
    if param is None:
        assert response.status_code == 200
    else:
        error = error_of(response, status=400)
        assert error["param"] == param
        assert str(MAX_TOLD_OF_PROMPTS) in error["message"]
        assert not scripted.generations


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_prompt_are_laid_out_beside_the_event_loop(
    client: httpx.AsyncClient, scripted: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Those of a long prompt take a second, in which all other streams would stand still."""
    threads: list[int] = []
    spell = TokenSpeller.spell

    def spelling(speller: TokenSpeller, token_id: int) -> Spelling:
        threads.append(threading.get_ident())
        return spell(speller, token_id)

    monkeypatch.setattr(TokenSpeller, "spell", spelling)
    body = {**COMPLETION, "echo": True, "logprobs": 2, "stream": stream, "n": 2}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert threads
    assert threading.get_ident() not in threads
    # "H" and "i", and two candidates for the latter: built once, though both choices tell of them.
    assert len(threads) == 4


async def test_prompts_tokens_are_for_whole_answers(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    response = await client.post("/v1/completions", json={**COMPLETION, "prompt_logprobs": 1, "stream": True})
    assert error_of(response, status=400)["param"] == "prompt_logprobs"
