"""What a client hears of its quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from serving.admission.standing import RateLimit
from serving.admission.usage import UsageRow, add_usage
from serving.api.rate_limits import headers_of, spell_duration
from serving.contracts.accounting import Spent
from serving.contracts.tunables import Tunables
from serving.gateway.text.tokenizer import TextModel
from serving.threads import in_thread
from tests.api.conftest import CONTEXT, MODEL, Connection, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of
from tests.gateway.harness import eventually

PATH = "/v1/completions"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi", "max_tokens": 8}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


async def bound(
    client: httpx.AsyncClient, *, most_urgent: int | None = None, weight: float | None = None, **quotas: int
) -> int:
    """Give the client's tenant these quotas; its id."""
    (tenant,) = [tenant for tenant in (await client.get("/ops/v1/tenants")).json()["data"] if tenant["name"] == "tests"]
    changes = {"most_urgent": most_urgent, "weight": weight, "quotas": quotas or None}
    body = {name: value for name, value in changes.items() if value is not None}
    response = await client.patch(f"/ops/v1/tenants/{tenant['id']}", json=body)
    assert response.status_code == 200, response.text
    return int(tenant["id"])


async def end(services: ScriptedServices, *, used: Spent) -> None:
    """End all requests that run."""
    for permit in services.gateway.permits:
        await services.door.close(permit, used)
    services.gateway.permits.clear()


def limits_of(response: httpx.Response) -> dict[str, str]:
    start = "x-ratelimit-"
    return {name[len(start) :]: value for name, value in response.headers.items() if name.startswith(start)}


# --- headers ---


@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_says_what_is_left_of_the_minute(client: httpx.AsyncClient, stream: bool) -> None:
    await bound(client, requests_per_minute=2, tokens_per_minute=100)
    response = await client.post(PATH, json={**COMPLETION, "stream": stream})
    assert response.status_code == 200
    found = limits_of(response)
    resets = {found.pop("reset-requests"), found.pop("reset-tokens")}
    assert len(resets) == 1
    assert resets.pop().endswith("s")
    # Two bytes are two tokens here, and eight may follow.
    assert found == {
        "limit-requests": "2",
        "remaining-requests": "1",
        "limit-tokens": "100",
        "remaining-tokens": "90",
    }


async def test_refusals_and_other_answers_say_it_too(client: httpx.AsyncClient) -> None:
    await bound(client, requests_per_minute=1)
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200
    answers = [
        await client.post(PATH, json=COMPLETION),
        await client.post(PATH, json={**COMPLETION, "temperature": 9}),
        await client.post(PATH, content=b"{"),
        await client.get("/v1/models"),
        await client.get("/v1/models/unknown"),
        await client.get(f"/v1/models/{MODEL}"),
    ]
    assert [answer.status_code for answer in answers] == [429, 400, 400, 200, 404, 200]
    assert [limits_of(answer)["remaining-requests"] for answer in answers] == ["0"] * 6
    assert "remaining-tokens" not in limits_of(answers[0])


async def test_without_quotas_of_a_minute_nothing_is_said(client: httpx.AsyncClient) -> None:
    await bound(client, max_concurrent_requests=5)
    assert limits_of(await client.post(PATH, json=COMPLETION)) == {}
    assert limits_of(await client.get("/v1/models")) == {}


async def test_who_bears_no_key_hears_nothing_of_quotas(client: httpx.AsyncClient) -> None:
    await bound(client, requests_per_minute=1)
    response = await client.get("/v1/models", headers={"Authorization": "Bearer nonsense"})
    assert response.status_code == 401
    assert limits_of(response) == {}


def test_headers_are_spelt_as_openai_does() -> None:
    limit = RateLimit(kind="tokens", limit=100, remaining=7, reset_seconds=1.5)
    assert headers_of([limit]) == [
        (b"x-ratelimit-limit-tokens", b"100"),
        (b"x-ratelimit-remaining-tokens", b"7"),
        (b"x-ratelimit-reset-tokens", b"1.5s"),
    ]


@pytest.mark.parametrize(
    ("seconds", "spelt"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0004, "1ms"),
        (0.02, "20ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (60, "1m0s"),
        (366.25, "6m6.25s"),
    ],
)
def test_durations_are_spelt_as_openai_does(seconds: float, spelt: str) -> None:
    assert spell_duration(seconds) == spelt


# --- refusals ---


async def test_too_many_requests_of_a_minute_are_refused_with_their_own_code(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    await bound(client, requests_per_minute=1)
    await client.post(PATH, json=COMPLETION)
    response = await client.post(PATH, json=COMPLETION)
    error = error_of(response, status=429)
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert "the tenant's quota requests_per_minute is 1" in error["message"]
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert "x-should-retry" not in response.headers
    assert services.observer.outcomes == ["refused:rate_limit_exceeded"]


async def test_spent_day_is_an_insufficient_quota_that_clients_do_not_retry(
    client: httpx.AsyncClient, sdk: openai.AsyncOpenAI, services: ScriptedServices
) -> None:
    await bound(client, tokens_per_month=100)
    response = await client.post(PATH, json={**COMPLETION, "max_tokens": 99})
    error = error_of(response, status=429)
    assert (error["code"], error["type"]) == ("insufficient_quota", "rate_limit_error")
    assert response.headers["x-should-retry"] == "false"
    assert "retry-after" in response.headers
    with pytest.raises(openai.RateLimitError) as caught:
        await sdk.with_options(max_retries=2).completions.create(model=MODEL, prompt="Hi", max_tokens=99)
    assert caught.value.code == "insufficient_quota"
    assert services.observer.outcomes == ["refused:insufficient_quota"] * 2


async def test_what_was_used_before_is_taken_from_the_database(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    tenant_id = await bound(client, tokens_per_month=100)
    probe = await client.post(PATH, json=COMPLETION)
    assert probe.status_code == 200
    day = services.gateway.permits[0].day
    await end(services, used=Spent())
    row = UsageRow(tenant_id=tenant_id, key_prefix="", day=day, num_requests=3, prompt_tokens=50, completion_tokens=41)
    await in_thread(add_usage, [row])
    await services.redis.flushall()
    error = error_of(await client.post(PATH, json=COMPLETION), status=429)
    assert "tokens_per_month is 100: 91 tokens of this month (UTC) are used" in error["message"]


async def test_each_choice_and_prompt_is_charged_in_full_or_not_at_all(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    """C39: of many prompts and choices none is let in alone."""
    await bound(client, tokens_per_minute=100)
    # Two prompts of 2 tokens with 6 choices of at most 8 tokens: 2 x (2 + 48).
    body = {**COMPLETION, "prompt": ["Hi", "Hi"], "n": 6}
    assert (
        error_of(await client.post(PATH, json={**body, "max_tokens": 9}), status=429)["code"] == "rate_limit_exceeded"
    )
    assert limits_of(await client.get("/v1/models"))["remaining-tokens"] == "100"
    response = await client.post(PATH, json=body)
    assert response.status_code == 200
    assert limits_of(response)["remaining-tokens"] == "0"
    await end(services, used=Spent(2, 3))
    assert limits_of(await client.get("/v1/models"))["remaining-tokens"] == "90"


async def test_concurrent_requests_are_bounded_until_they_end(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    await bound(client, max_concurrent_requests=2)
    for _ in range(2):
        assert (await client.post(PATH, json=COMPLETION)).status_code == 200
    response = await client.post(PATH, json=COMPLETION)
    assert "max_concurrent_requests is 2" in error_of(response, status=429)["message"]
    assert int(response.headers["retry-after"]) >= 1
    await end(services, used=Spent(2, 2))
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200


async def test_what_is_refused_before_it_starts_counts_as_if_it_had_not_come(client: httpx.AsyncClient) -> None:
    await bound(client, requests_per_minute=1, tokens_per_minute=10_000)
    for body in ({**COMPLETION, "prompt": "x" * (CONTEXT + 1)}, {**COMPLETION, "max_tokens": CONTEXT}):
        assert error_of(await client.post(PATH, json=body), status=400)["code"] == "context_length_exceeded"
    response = await client.post(PATH, json=COMPLETION)
    assert response.status_code == 200
    assert limits_of(response)["remaining-tokens"] == "9990"


# --- how long, how urgent ---


@pytest.mark.parametrize("prompt", ["x" * 30, [5] * 30])
async def test_prompt_longer_than_its_quota_is_refused_by_name(
    client: httpx.AsyncClient, gateway: ScriptedGateway, prompt: Any
) -> None:
    await bound(client, max_prompt_tokens=29)
    error = error_of(await client.post(PATH, json={**COMPLETION, "prompt": prompt}), status=400)
    assert error["code"] == "prompt_too_long"
    assert error["message"] == "the prompt has 30 tokens, and the tenant's quota max_prompt_tokens allows 29"
    assert (await client.post(PATH, json={**COMPLETION, "prompt": prompt[:29]})).status_code == 200
    assert len(gateway.generations) == 1


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_longer_answer_than_its_quota_is_refused_where_it_was_asked_for(
    client: httpx.AsyncClient, gateway: ScriptedGateway, field: str
) -> None:
    await bound(client, max_output_tokens=20)
    error = error_of(await client.post("/v1/chat/completions", json={**CHAT, field: 21}), status=400)
    assert (error["code"], error["param"]) == ("invalid_value", field)
    assert error["message"] == f"{field} must be at most 20, the quota max_output_tokens, not 21"
    assert (await client.post("/v1/chat/completions", json={**CHAT, field: 20})).status_code == 200
    assert gateway.generations[0].params[0].max_tokens == 20


async def test_what_exceeds_the_context_is_refused_as_that_whatever_the_quota(client: httpx.AsyncClient) -> None:
    await bound(client, tokens_per_minute=1000)
    refused = await client.post(PATH, json={**COMPLETION, "max_tokens": 1_000_000})
    assert error_of(refused, status=400)["code"] == "context_length_exceeded"


async def test_unnamed_limit_of_an_answer_is_its_quota(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    await bound(client, max_output_tokens=10, tokens_per_minute=1000)
    response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 200
    assert gateway.generations[0].params[0].max_tokens == 10
    num_prompt_tokens = len(gateway.generations[0].prompt_ids)
    assert limits_of(response)["remaining-tokens"] == str(1000 - num_prompt_tokens - 10)
    assert (await client.post(PATH, json={"model": MODEL, "prompt": "Hi"})).status_code == 200
    assert gateway.generations[1].params[0].max_tokens == 10
    await bound(client, max_output_tokens=CONTEXT * 2)
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert gateway.generations[2].params[0].max_tokens == CONTEXT - num_prompt_tokens


async def test_longer_minimum_than_the_quota_is_refused(client: httpx.AsyncClient) -> None:
    await bound(client, max_output_tokens=10)
    error = error_of(await client.post("/v1/chat/completions", json={**CHAT, "min_tokens": 11}), status=400)
    assert (error["code"], error["param"]) == ("invalid_value", "min_tokens")
    assert "max_output_tokens" in error["message"]


async def test_more_urgent_than_the_tenant_may_be_is_refused(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    await bound(client, most_urgent=-5)
    error = error_of(await client.post(PATH, json={**COMPLETION, "priority": -6}), status=400)
    assert (error["code"], error["param"]) == ("invalid_value", "priority")
    assert error["message"] == "priority must be an integer from -5 to 100, not -6"
    assert (await client.post(PATH, json={**COMPLETION, "priority": -5})).status_code == 200


async def test_what_names_no_priority_has_the_most_urgent_that_it_may_have(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    await bound(client, most_urgent=5)
    embedding = {"model": MODEL, "input": "a"}
    for path, body in ((PATH, COMPLETION), ("/v1/chat/completions", CHAT), ("/v1/embeddings", embedding)):
        await client.post(path, json=body)
    assert [generation.priority for generation in gateway.generations] == [5, 5, 5]
    assert error_of(await client.post(PATH, json={**COMPLETION, "priority": 0}), status=400)["param"] == "priority"


async def test_tenants_weight_goes_with_the_request(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    await bound(client, weight=2.5)
    await client.post(PATH, json=COMPLETION)
    assert gateway.generations[0].weight == 2.5


# --- changes ---


async def test_lowered_quota_counts_for_the_next_request(client: httpx.AsyncClient) -> None:
    await bound(client, requests_per_minute=100)
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200
    await bound(client, requests_per_minute=1)
    assert error_of(await client.post(PATH, json=COMPLETION), status=429)["code"] == "rate_limit_exceeded"
    await bound(client, requests_per_minute=2)
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200


async def test_tenant_that_is_disabled_while_known_here_is_refused_at_the_door(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    tenant_id = await bound(client, requests_per_minute=100)
    key = client.headers["Authorization"]
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200
    assert (await client.patch(f"/ops/v1/tenants/{tenant_id}", json={"enabled": False})).status_code == 200
    response = await client.post(PATH, json=COMPLETION, headers={"Authorization": key})
    assert error_of(response, status=401)["code"] == "invalid_api_key"
    assert len(services.gateway.generations) == 1


# --- bursts ---


@pytest.mark.heavy
async def test_burst_costs_no_more_tokenising_than_the_bound_lets_in(
    client: httpx.AsyncClient,
    services: ScriptedServices,
    gateway: ScriptedGateway,
    text_model: TextModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C81: a queue of 8, and 500 large prompts at once."""
    tokenised = []
    encode = TextModel.encode_async

    async def count(self: TextModel, text: str, **options: Any) -> list[int]:
        tokenised.append(text)
        return await encode(self, text, **options)

    monkeypatch.setattr(TextModel, "encode_async", count)
    gateway.change_view(tunables=Tunables(max_queue_requests=8, urgent_queue_ratio=0))
    body = {**COMPLETION, "prompt": "x" * 400}
    answers = await asyncio.gather(*(client.post(PATH, json=body) for _ in range(500)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 8 + [429] * 492
    assert len(tokenised) == 8
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)


@pytest.mark.parametrize(("prompt", "least"), [([39, 72], 10), ("Hi", 1)])
async def test_burst_of_one_key_never_exceeds_its_tokens(
    client: httpx.AsyncClient,
    gateway: ScriptedGateway,
    services: ScriptedServices,
    prompt: str | list[int],
    least: int,
) -> None:
    """C82, within one process: each request asks for 10 of 100 tokens. A text counts as less until its tokens are
    known: more get in than there is room for, of whom some are turned away again."""
    await bound(client, tokens_per_minute=100)
    answers = await asyncio.gather(*(client.post(PATH, json=COMPLETION | {"prompt": prompt}) for _ in range(200)))
    num_served = sum(answer.status_code == 200 for answer in answers)
    assert least <= num_served == len(gateway.generations) <= 10
    assert sum(answer.status_code == 429 for answer in answers) == 200 - num_served
    assert services.observer.outcomes == ["refused:rate_limit_exceeded"] * (200 - num_served)


async def test_waiting_clients_that_leave_hold_no_quota(
    client: httpx.AsyncClient,
    services: ScriptedServices,
    gateway: ScriptedGateway,
    connect: Callable[[str, dict[str, Any]], Connection],
) -> None:
    """C14: the bound is filled, everybody leaves, and the next one is served."""
    await bound(client, max_concurrent_requests=4)
    gateway.holds = True
    waiting = [connect(PATH, {**COMPLETION, "stream": True}) for _ in range(4)]
    await eventually(lambda: len(gateway.permits) == 4)
    assert (await client.post(PATH, json=COMPLETION)).status_code == 429
    for connection in waiting:
        await connection.leave()
    assert gateway.num_closed == 4
    await end(services, used=Spent())
    gateway.holds = False
    assert (await client.post(PATH, json=COMPLETION)).status_code == 200
