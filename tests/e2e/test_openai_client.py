"""The official client against a whole stack with the real model."""

from __future__ import annotations

import concurrent.futures
import math
import time
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model]

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in English."}]
STORY = "Once upon a time, in a village by the sea,"


def test_model_is_listed_with_its_context_length(client: openai.OpenAI, model: str) -> None:
    listed = client.models.list().data[0]
    assert listed.id == model == "SmolLM2-135M-Instruct"
    assert listed.model_extra is not None
    assert listed.model_extra["max_model_len"] == 8192


def test_chat_answers_sensibly(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_equals_the_whole_answer(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=60)
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=QUESTION,
            temperature=0,
            max_tokens=60,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].usage == whole.usage


def test_seeded_text_does_not_depend_on_company(client: openai.OpenAI, model: str) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(model=model, prompt=STORY, seed=seed, temperature=1.0, max_tokens=48)
        return answer.choices[0].text

    alone = {seed: ask(seed) for seed in range(4)}
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        together = list(pool.map(ask, [seed % 12 for seed in range(24)]))
    assert {seed: together[seed] for seed in range(4)} == alone
    assert together[:12] == together[12:]
    assert len(set(together)) == 12


def test_choices_differ_and_are_counted(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=STORY, seed=5, n=3, max_tokens=24)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 3
    again = client.completions.create(model=model, prompt=STORY, seed=5, n=3, max_tokens=24)
    assert [choice.text for choice in again.choices] == [choice.text for choice in answer.choices]


def test_stop_string_ends_the_text_before_it(client: openai.OpenAI, model: str, stack: Stack) -> None:
    full = client.completions.create(model=model, prompt=STORY, temperature=0, max_tokens=60).choices[0].text
    stop = full.split()[6]
    cut = client.completions.create(model=model, prompt=STORY, temperature=0, max_tokens=60, stop=stop).choices[0]
    assert cut.text == full[: full.index(stop)]
    assert cut.finish_reason == "stop"
    stack.wait_until_idle()


def test_ignored_eos_runs_to_the_length(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=64, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 64


def test_logprobs_of_a_stream_are_those_of_the_whole_answer(client: openai.OpenAI, model: str) -> None:
    asking = {"model": model, "messages": QUESTION, "seed": 3, "max_tokens": 24, "logprobs": True, "top_logprobs": 20}
    whole = client.chat.completions.create(**asking)
    found = whole.choices[0].logprobs
    assert found is not None
    entries = found.content or []
    assert whole.usage is not None
    assert len(entries) == whole.usage.completion_tokens
    assert b"".join(bytes(entry.bytes or ()) for entry in entries).decode() == whole.choices[0].message.content
    for entry in entries:
        assert -9999.0 <= entry.logprob <= 0.0
        chances = [math.exp(top.logprob) for top in entry.top_logprobs]
        assert len(chances) == 20
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1.0 + 1e-4
    chunks = client.chat.completions.create(**asking, stream=True)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or []
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in entries], abs=1e-3)


def test_echo_of_an_answer_is_as_probable_as_when_it_was_given(client: openai.OpenAI, model: str) -> None:
    """What decoding says of its tokens, reading them as a prompt says again."""
    first = client.completions.create(model=model, prompt=STORY, temperature=0, max_tokens=12, logprobs=0).choices[0]
    again = client.completions.create(model=model, prompt=STORY + first.text, max_tokens=0, echo=True, logprobs=0)
    assert again.choices[0].text == STORY + first.text
    assert again.usage is not None
    assert again.usage.completion_tokens == 0
    assert first.logprobs is not None
    assert again.choices[0].logprobs is not None
    assert again.choices[0].logprobs.tokens[-12:] == first.logprobs.tokens
    expected = pytest.approx(first.logprobs.token_logprobs, abs=0.05)
    assert again.choices[0].logprobs.token_logprobs[-12:] == expected


def test_penalties_and_bias_change_the_text(client: openai.OpenAI, model: str) -> None:
    def ask(**fields: Any) -> str:
        return (
            client.completions.create(model=model, prompt=STORY, temperature=0, max_tokens=48, **fields).choices[0].text
        )

    plain = ask()
    assert ask(presence_penalty=0.0, frequency_penalty=0.0, extra_body={"repetition_penalty": 1.0}) == plain
    assert ask(presence_penalty=2.0) != plain
    assert ask(frequency_penalty=2.0) != plain
    assert ask(extra_body={"repetition_penalty": 1.5}) != plain
    only = ask(logit_bias={"28": 100}, frequency_penalty=0)
    assert len(set(only)) == 1


def test_first_bytes_arrive_long_before_the_last(stack: Stack) -> None:
    body = {"model": "SmolLM2-135M-Instruct", "prompt": STORY, "max_tokens": 200, "ignore_eos": True, "stream": True}
    arrivals: list[float] = []
    start = time.monotonic()
    headers = {**stack.headers, "Accept-Encoding": "gzip"}
    with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, headers=headers, timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers
        assert answer.headers["x-request-id"].startswith("req_")
        arrivals.extend(time.monotonic() - start for line in answer.iter_lines() if line.startswith("data: {"))
    assert len(arrivals) >= 160
    assert arrivals[0] < arrivals[-1] * 0.2


def test_errors_come_in_the_clients_own_classes(client: openai.OpenAI, model: str, stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="no-such-model", prompt=STORY)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt=STORY, max_tokens=100_000)
    assert caught.value.code == "context_length_exceeded"
    for number in ("8192", "100000"):
        assert number in caught.value.message
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt="")
    stranger = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="fp-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as refused:
        stranger.completions.create(model=model, prompt=STORY)
    assert "fp-wrong" not in str(refused.value)


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/ops/v1/nothing"])
def test_unknown_paths_are_answered_in_the_error_envelope(stack: Stack, path: str) -> None:
    answer = httpx.get(f"{stack.url}{path}", headers=stack.headers)
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_other_methods_and_large_bodies_are_answered_in_the_error_envelope(stack: Stack) -> None:
    url = f"{stack.url}/v1/completions"
    wrong_method = httpx.get(url, headers=stack.headers)
    assert wrong_method.status_code == 405
    assert set(wrong_method.json()["error"]) == {"message", "type", "param", "code"}
    too_large = httpx.post(url, headers=stack.headers, content=b"x" * 3_000_000)
    assert too_large.status_code == 413
    assert set(too_large.json()["error"]) == {"message", "type", "param", "code"}
    stack.wait_for(lambda snapshot: snapshot["rejected"].keys() >= {"method_not_allowed", "request_too_large"})
