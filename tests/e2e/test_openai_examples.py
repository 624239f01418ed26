"""The examples of the official client's own README, as they stand there but for address, key and model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model]


@pytest.fixture(autouse=True)
def configured_by_environment(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the examples look for key and address by themselves."""
    monkeypatch.setenv("OPENAI_API_KEY", stack.first_run["api_key"])
    monkeypatch.setenv("OPENAI_BASE_URL", f"{stack.url}/v1")
    yield
    stack.wait_until_idle()


def test_chat(model: str) -> None:
    client = OpenAI()
    completion = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "developer", "content": "Talk like a pirate."},
            {"role": "user", "content": "How do I check if a Python object is an instance of a class?"},
        ],
        max_tokens=24,
    )
    assert completion.choices[0].message.content


def test_async(model: str) -> None:
    async def main() -> str | None:
        async with AsyncOpenAI() as client:
            completion = await client.chat.completions.create(
                messages=[{"role": "user", "content": "Say this is a test"}], model=model, max_tokens=16
            )
        return completion.choices[0].message.content

    assert asyncio.run(main())


def test_streaming(model: str) -> None:
    stream = OpenAI().chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Say this is a test"}], stream=True, max_tokens=16
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_async_streaming(model: str) -> None:
    async def main() -> list[str]:
        async with AsyncOpenAI() as client:
            stream = await client.completions.create(model=model, prompt="Say this is a test", stream=True)
            return [chunk.choices[0].text async for chunk in stream]

    assert "".join(asyncio.run(main()))


def test_helper_for_streams(model: str) -> None:
    with OpenAI().chat.completions.stream(
        model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content


def test_completions_and_models(model: str) -> None:
    client = OpenAI()
    assert client.completions.create(model=model, prompt="Once upon a time", max_tokens=8).choices[0].text
    assert [found.id for found in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def test_raw_response_with_request_id(model: str) -> None:
    response = OpenAI().chat.completions.with_raw_response.create(
        messages=[{"role": "user", "content": "Say this is a test"}], model=model, max_tokens=8
    )
    assert response.headers["x-request-id"].startswith("req_")
    completion = response.parse()
    assert completion.choices[0].message.content
    assert completion._request_id == response.headers["x-request-id"]


def test_streamed_raw_response(model: str) -> None:
    with OpenAI().chat.completions.with_streaming_response.create(
        messages=[{"role": "user", "content": "Say this is a test"}], model=model, max_tokens=8
    ) as response:
        assert response.headers.get("x-request-id")
        assert json.loads("".join(response.iter_lines()))["object"] == "chat.completion"


def test_nested_parameters_for_a_json_object(model: str) -> None:
    completion = OpenAI().chat.completions.create(
        messages=[{"role": "user", "content": "Can you generate an example json object describing a fruit?"}],
        model=model,
        response_format={"type": "json_object"},
        max_tokens=200,
    )
    choice = completion.choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)
    else:
        assert choice.finish_reason == "length"


class Event(pydantic.BaseModel):
    """What the answer is to be, as a model of pydantic's."""

    month: int
    is_public: bool


def test_structured_parse(model: str) -> None:
    completion = OpenAI().chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "The fair is in May, and open to all."}],
        response_format=Event,
        temperature=0,
        max_tokens=100,
    )
    assert isinstance(completion.choices[0].message.parsed, Event)


def test_tools_are_refused_for_a_model_whose_template_knows_none(model: str) -> None:
    tool: Any = openai.pydantic_function_tool(Event)
    tool["function"].pop("strict")
    with pytest.raises(openai.BadRequestError, match=f"{model}.*takes no tools"):
        OpenAI().chat.completions.create(
            model=model, messages=[{"role": "user", "content": "When is the fair?"}], tools=[tool]
        )


def test_embeddings(model: str) -> None:
    answer = OpenAI().embeddings.create(
        model=model, input="The food was delicious and the waiter...", encoding_format="float"
    )
    assert sum(number * number for number in answer.data[0].embedding) == pytest.approx(1)


def test_errors_retries_and_timeouts(model: str, stack: Stack) -> None:
    client = OpenAI(max_retries=0)
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.status_code == 404
    assert caught.value.response.headers["x-request-id"]
    completion = client.with_options(max_retries=5, timeout=60.0).chat.completions.create(
        messages=[{"role": "user", "content": "How can I list all files in a directory using Python?"}],
        model=model,
        max_tokens=8,
    )
    assert completion.usage is not None
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(
            messages=[{"role": "user", "content": "Tell me a long story."}],
            model=model,
            max_tokens=4000,
            extra_body={"ignore_eos": True},
        )


def test_undocumented_requests(model: str) -> None:
    client = OpenAI()
    told = client.with_options(base_url=str(client.base_url).removesuffix("v1/")).post(
        "/tokenize", cast_to=httpx.Response, body={"model": model, "prompt": "Say this is a test"}
    )
    ids = told.json()["tokens"]
    assert len(ids) == told.json()["count"] >= 4
    completion = client.completions.create(model=model, prompt=ids, max_tokens=4, extra_body={"timings": True})
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(ids)
    timings = (completion.model_extra or {})["timings"]
    assert set(timings) == {"queue_ms", "prefill_ms", "decode_ms", "num_cached_tokens", "num_preemptions"}
    assert timings["prefill_ms"] > 0
    assert timings["decode_ms"] > 0


def test_best_of_many(model: str) -> None:
    asking: dict[str, Any] = {"model": model, "prompt": "Once upon a time", "seed": 5, "max_tokens": 12, "logprobs": 0}

    def mean(choice: Any) -> float:
        return float(sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))

    all_choices = OpenAI().completions.create(**asking, n=4).choices
    best = OpenAI().completions.create(**asking, best_of=4)
    assert best.choices[0].text == max(all_choices, key=mean).text
    assert best.usage is not None
    assert best.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in all_choices if choice.logprobs)
