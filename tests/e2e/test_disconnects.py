"""Clients that go away, in every way they do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time

import httpx
import openai
import pytest

from tests.e2e.stack import Stack, open_stream

pytestmark = [pytest.mark.stack, pytest.mark.model]


def _assert_generation_stops(stack: Stack) -> None:
    idle = stack.wait_until_idle()
    generated = sum(engine["generated_tokens_total"] for engine in idle["engines"])
    time.sleep(0.5)
    later = sum(engine["generated_tokens_total"] for engine in stack.snapshot()["engines"])
    assert later == generated


def test_closing_a_stream_stops_its_generation(stack: Stack, client: openai.OpenAI, model: str) -> None:
    connection = open_stream(stack)
    assert connection.recv(4096)
    stack.wait_for(lambda s: s["num_running"] == 1)
    connection.close()
    _assert_generation_stops(stack)
    assert client.completions.create(model=model, prompt="Hello", max_tokens=5).choices[0].finish_reason


def test_closing_plain_requests_stops_their_generation(stack: Stack) -> None:
    before = stack.wait_until_settled()["outcomes"].get("aborted", 0)
    connections = [open_stream(stack, stream=False) for _ in range(10)]
    stack.wait_for(lambda s: s["num_running"] == 10)
    for connection in connections:
        connection.close()
    _assert_generation_stops(stack)
    stack.wait_for(lambda s: s["outcomes"].get("aborted", 0) == before + 10)


def test_mass_disconnect_of_running_and_waiting_leaves_no_permit(
    stack: Stack, client: openai.OpenAI, model: str
) -> None:
    stack.wait_until_idle()
    stack.tune(max_running=2, max_queue_requests=6)
    try:
        connections = []
        for _ in range(8):
            connections.append(open_stream(stack))
            stack.wait_for(lambda s: s["num_running"] + s["num_waiting"] == len(connections))
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model=model, prompt="Hello", max_tokens=5)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert refused.value.code == "queue_full"
        for connection in connections:
            connection.close()
        _assert_generation_stops(stack)
        assert client.completions.create(model=model, prompt="Hello", max_tokens=5).choices[0].finish_reason
    finally:
        stack.tune(max_running=32, max_queue_requests=256)


def test_two_hundred_streams_that_leave_at_once_leave_nothing(stack: Stack) -> None:
    before = stack.wait_until_settled()["outcomes"].get("aborted", 0)
    connections = [open_stream(stack) for _ in range(200)]
    stack.wait_for(lambda s: s["num_running"] + s["num_waiting"] == 200)
    for connection in connections:
        connection.close()
    _assert_generation_stops(stack)
    stack.wait_for(lambda s: s["outcomes"]["aborted"] == before + 200 and s["outcomes"]["running"] == 0)


def test_all_choices_find_a_place_or_none(stack: Stack, client: openai.OpenAI, model: str) -> None:
    stack.wait_until_idle()
    stack.tune(max_queue_requests=15, urgent_queue_ratio=0)
    try:
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model=model, prompt="Hello", max_tokens=5, n=16)
        answer = client.completions.create(model=model, prompt="Hello", max_tokens=5, n=15)
        assert len(answer.choices) == 15
        stack.wait_until_idle()
    finally:
        stack.tune(max_queue_requests=256, urgent_queue_ratio=0.1)


def test_same_request_id_from_two_clients_is_no_identity(stack: Stack) -> None:
    def ask(word: str) -> httpx.Response:
        return httpx.post(
            f"{stack.url}/v1/completions",
            headers={**stack.headers, "X-Request-Id": "the-same"},
            json={"model": "SmolLM2-135M-Instruct", "prompt": word * 20, "max_tokens": 40, "temperature": 0},
            timeout=60,
        )

    alone = [ask(word).json()["choices"][0]["text"] for word in ("cat ", "seven ")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        together = list(pool.map(ask, ("cat ", "seven ")))
    assert [answer.json()["choices"][0]["text"] for answer in together] == alone
    assert together[0].headers["x-request-id"] != together[1].headers["x-request-id"]


@pytest.mark.parametrize("value", [b"x" * 8192, b"\xc3\xa4\xff", b"a\x01b"])
def test_odd_request_ids_do_no_harm(stack: Stack, value: bytes) -> None:
    answer = httpx.get(
        f"{stack.url}/v1/models",
        headers=[(b"Authorization", stack.headers["Authorization"].encode()), (b"X-Request-Id", value)],
    )
    assert answer.status_code in {200, 400}
    assert "x-client-request-id" not in answer.headers or answer.headers["x-client-request-id"].isprintable()


async def test_second_request_does_not_disturb_the_first(stack: Stack) -> None:
    key = stack.first_run["api_key"]
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0) as client:

        async def ask(prompt: str) -> tuple[str, str | None]:
            text, reason = "", None
            async for chunk in await client.completions.create(
                model="SmolLM2-135M-Instruct", prompt=prompt, max_tokens=100, temperature=0, stream=True
            ):
                text += chunk.choices[0].text
                reason = chunk.choices[0].finish_reason or reason
            return text, reason

        alone = await ask("The history of the railway begins")
        first = asyncio.create_task(ask("The history of the railway begins"))
        await asyncio.sleep(0.5)
        await asyncio.gather(*(ask(f"Number {index} is") for index in range(6)))
        assert await first == alone
        assert alone[1] is not None
