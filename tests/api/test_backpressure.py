"""What a client hears of a queue: its bounds, its deadlines, when to come again, and where it stands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from serving.admission.door import Door
from serving.admission.keys import KeyText
from serving.admission.permits import Weight
from serving.api import streaming
from serving.contracts.errors import QueueTimeout
from serving.contracts.tunables import Tunables
from tests.admission.test_pace import MAX_RUNNING, Engine
from tests.api.conftest import MODEL, POOL, Connection, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of

PATH = "/v1/completions"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
Connect = Callable[[str, dict[str, Any]], Connection]


def make_busy(services: ScriptedServices, *, left_per_second: int = 1) -> None:
    """Let the pool's only engine be full, with sequences leaving at this rate."""
    engine = Engine()
    for _ in range(10):
        seen = engine.after(1.0, left=left_per_second, num_running=MAX_RUNNING)
        services.predictor.look(POOL, [seen], max_running=MAX_RUNNING)


async def fill(door: Door, count: int) -> None:
    await door.enter(POOL, [Weight(1, 1)] * count, tunables=Tunables())


# --- the request's own timeout ---


@pytest.mark.parametrize(("path", "body"), [(PATH, COMPLETION), ("/v1/chat/completions", CHAT)])
@pytest.mark.parametrize(("given", "understood"), [(2, 2.0), (0.5, 0.5), (3600, 3600.0), (None, None)])
async def test_timeout_goes_with_the_request(
    client: httpx.AsyncClient,
    gateway: ScriptedGateway,
    path: str,
    body: dict[str, Any],
    given: float | None,
    understood: float | None,
) -> None:
    assert (await client.post(path, json={**body, "timeout": given})).status_code == 200
    assert [generation.timeout_seconds for generation in gateway.generations] == [understood]


@pytest.mark.parametrize("seconds", [0, -1, 3600.1, "2", True, [], {}, 10**400])
async def test_timeout_that_is_no_number_of_seconds_is_refused_by_name(client: httpx.AsyncClient, seconds: Any) -> None:
    error = error_of(await client.post(PATH, json={**COMPLETION, "timeout": seconds}), status=400)
    assert error["param"] == "timeout"


async def test_timeout_says_when_to_come_again(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    gateway.script = lambda _: [QueueTimeout("it waited too long", retry_after_seconds=17)]
    response = await client.post(PATH, json=COMPLETION)
    assert error_of(response, status=408)["code"] == "queue_timeout"
    assert response.headers["retry-after"] == "17"


# --- early_reject ---


async def test_what_would_come_too_late_is_refused_at_once_and_costs_no_tokenising(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    gateway.change_view(tunables=Tunables(early_reject="on", slo_ttft_ms=5000))
    make_busy(services)
    await fill(services.door, 30)
    response = await client.post(PATH, json={"model": MODEL, "prompt": "x" * 600})
    error = error_of(response, status=429)
    assert error["code"] == "predicted_too_late"
    assert "31000 ms" in error["message"]
    assert "slo_ttft_ms is 5000" in error["message"]
    assert response.headers["retry-after"] == "26"
    assert "x-should-retry" not in response.headers
    assert services.observer.outcomes == ["refused:predicted_too_late"]
    assert services.observer.num_submitted == 1


async def test_early_refusal_goes_by_the_requests_own_timeout_as_well(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    gateway.change_view(tunables=Tunables(early_reject="on", slo_ttft_ms=60_000))
    make_busy(services)
    await fill(services.door, 30)
    error = error_of(await client.post(PATH, json={**COMPLETION, "timeout": 10}), status=429)
    assert "its timeout is 10000 ms" in error["message"]
    assert (await client.post(PATH, json={**COMPLETION, "timeout": 50})).status_code == 200


async def test_nobody_is_refused_early_while_that_is_off_or_nothing_is_known(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    await fill(services.door, 30)
    gateway.change_view(tunables=Tunables(early_reject="on", slo_ttft_ms=1))
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200
    make_busy(services)
    gateway.change_view(tunables=Tunables(slo_ttft_ms=1))
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200


async def test_who_is_served_before_the_others_is_not_judged_by_their_number(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    """Under `fair`, a tenant that has nothing in the queue does not stand behind another's flood."""
    gateway.change_view(tunables=Tunables(early_reject="on", slo_ttft_ms=5000, order="fair"))
    make_busy(services)
    await fill(services.door, 30)
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200
    assert (await client.post(PATH, json=COMPLETION)).status_code == 429  # its first one waits now


# --- retrying ---


async def test_official_client_does_not_repeat_what_can_never_fit(
    application: Any, key: KeyText, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    """C39: sixteen choices where fifteen may wait. The client would else try three times."""
    gateway.change_view(tunables=Tunables(max_queue_requests=15, urgent_queue_ratio=0))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost")
    async with openai.AsyncOpenAI(
        api_key=key.text, base_url="http://localhost/v1", http_client=http, max_retries=2
    ) as sdk:
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk.completions.create(model=MODEL, prompt="x", n=16)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert services.observer.num_submitted == 1
        # What may fit later is worth another try.
        await fill(services.door, 15)
        with pytest.raises(openai.RateLimitError):
            await sdk.with_options(max_retries=1).completions.create(model=MODEL, prompt="x")
    assert services.observer.outcomes == ["refused:queue_full"] * 3


async def test_last_of_the_queue_is_kept_for_the_urgent(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    gateway.change_view(tunables=Tunables(max_queue_requests=10))
    await fill(services.door, 9)
    response = await client.post(PATH, json=COMPLETION)
    error = error_of(response, status=429)
    assert error["code"] == "queue_full"
    assert "priority below 0" in error["message"]
    assert int(response.headers["retry-after"]) >= 1


# --- waiting streams ---


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what is waited for sends no signal)
            await asyncio.sleep(0.005)


async def test_comments_tell_how_many_are_ahead(
    connect: Connect, services: ScriptedServices, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C70: a comment keeps the connection alive while the request waits."""
    monkeypatch.setattr(streaming, "WAITING_COMMENT_SECONDS", 0.02)
    services.header_hold_seconds = 0.02
    gateway.holds = True
    connection = connect(PATH, {**COMPLETION, "stream": True, "prompt": ["a", "b"]})
    await until(lambda: len(gateway.streams) == 2)
    assert (await connection.receive())["status"] == 200
    told = []
    for positions in ((None, None), (None, 12), (11, 12), (0, 1)):
        for stream, position in zip(gateway.streams, positions, strict=True):
            stream.num_ahead = position
        await connection.receive()  # it may have been on its way
        told.append((await connection.receive())["body"])
    assert told == [b": waiting\n\n", b": waiting, 12 ahead\n\n", b": waiting, 11 ahead\n\n", b": waiting, 0 ahead\n\n"]
    gateway.play(0)
    gateway.play(1)
    assert (await connection.receive_rest()).endswith(b"data: [DONE]\n\n")


async def test_official_client_hears_of_a_failure_while_waiting_and_of_no_finish_reason(
    application: Any, key: KeyText, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    """C63, C67: after the headers an error is an event in the stream, and nothing pretends to be an end."""
    services.header_hold_seconds = 0.0
    gateway.holds = True
    connection = Connection(application, key, PATH, {**COMPLETION, "stream": True})
    assert (await connection.receive())["status"] == 200
    await until(lambda: len(gateway.streams) == 1)
    gateway.streams[0].num_ahead = 3
    gateway.streams[0].fail(QueueTimeout("it waited too long", retry_after_seconds=3))
    rest = await connection.receive_rest()
    events = [json.loads(line[6:]) for line in rest.decode().split("\n\n") if line.startswith("data: ")]
    assert [set(event) for event in events] == [{"error"}]
    assert events[0]["error"]["code"] == "queue_timeout"
    assert b"finish_reason" not in rest
    assert b"[DONE]" not in rest

    async def sdk_stream() -> None:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost")
        async with openai.AsyncOpenAI(
            api_key=key.text, base_url="http://localhost/v1", http_client=http, max_retries=0
        ) as sdk:
            async for _ in await sdk.completions.create(**COMPLETION, stream=True):
                pytest.fail("text came of a request that never ran")

    reading = asyncio.create_task(sdk_stream())
    await until(lambda: len(gateway.streams) == 2)
    gateway.streams[1].fail(QueueTimeout("it waited too long"))
    with pytest.raises(openai.APIError) as caught:
        await reading
    assert "waited too long" in str(caught.value)
