"""More answers than are given, and which of them are."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from serving.contracts.tunables import Tunables
from serving.gateway.generation import ChoiceDelta, Generation
from serving.gateway.logprobs import TokenEntry
from serving.gateway.text.token_spelling import Spelling
from tests.api.conftest import MODEL, ScriptedGateway, ScriptedServices, say_hello
from tests.api.envelope import error_of

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
MEANS = (-3.0, -1.0, -2.0, -1.0)


def say_with_means(generation: Generation) -> list[Any]:
    """Choice by choice, one token more each, so that sums and means order them differently."""
    pieces = []
    for choice in range(len(generation.params)):
        assert generation.params[choice].num_logprobs is not None
        num_tokens = 4 - choice
        entry = TokenEntry(1, Spelling("x", b"x"), MEANS[choice], (), 0, 1)
        pieces.append(ChoiceDelta(choice, f"text {choice}", num_tokens, "stop", logprobs=(entry,) * num_tokens))
    return pieces


@pytest.fixture
def gateway(gateway: ScriptedGateway) -> ScriptedGateway:
    gateway.script = say_with_means
    return gateway


async def test_gives_those_with_the_highest_mean_and_counts_all(
    sdk: openai.AsyncOpenAI, gateway: ScriptedGateway
) -> None:
    answer = await sdk.completions.create(model=MODEL, prompt="Hi", n=2, best_of=4)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "text 1"), (1, "text 3")]
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 + 3 + 2 + 1
    assert len(gateway.generations[0].params) == 4
    assert len({params.seed for params in gateway.generations[0].params}) == 1


async def test_log_probabilities_that_were_asked_for_are_told(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    body = {**COMPLETION, "best_of": 3, "logprobs": 0}
    (choice,) = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert choice["text"] == "text 1"
    assert choice["logprobs"]["token_logprobs"] == [-1.0] * 3


async def test_each_prompt_has_its_own_best_with_its_echo(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    body = {"model": MODEL, "prompt": ["a", "b"], "best_of": 3, "n": 2, "echo": True}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["atext 1", "atext 2", "btext 1", "btext 2"]


async def test_every_generated_text_takes_a_place_in_the_queue(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    """C39."""
    gateway.change_view(tunables=Tunables(max_queue_requests=3, urgent_queue_ratio=0))
    answer = await client.post("/v1/completions", json={**COMPLETION, "best_of": 4})
    assert error_of(answer, status=429)["code"] == "queue_full"
    assert (await client.post("/v1/completions", json={**COMPLETION, "best_of": 3})).status_code == 200


@pytest.mark.parametrize(
    "fields", [{"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": 3, "n": 2, "stream": True}]
)
async def test_what_cannot_be_is_refused(
    client: httpx.AsyncClient, gateway: ScriptedGateway, fields: dict[str, Any]
) -> None:
    error = error_of(await client.post("/v1/completions", json={**COMPLETION, **fields}), status=400)
    assert error["param"] == "best_of"
    assert not gateway.generations


@pytest.mark.parametrize("fields", [{"best_of": 2, "n": 2}, {"best_of": 1}, {"best_of": None}])
async def test_as_many_as_are_given_may_be_streamed(
    services: ScriptedServices, sdk: openai.AsyncOpenAI, fields: dict[str, Any]
) -> None:
    services.gateway.script = say_hello
    stream = await sdk.completions.create(model=MODEL, prompt="Hi", stream=True, **fields)
    assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "stop"
