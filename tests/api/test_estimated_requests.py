"""Nobody is refused for good on a guess at how long a prompt is: what is certain alone decides that."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serving.api import mapping
from serving.contracts.accounting import Spent
from serving.contracts.tunables import Tunables
from tests.api.conftest import MODEL, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of
from tests.api.test_quotas import bound, end

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
NUM_PROMPT_TOKENS = len("<user>Hi<assistant>")
NUM_CHARGED = NUM_PROMPT_TOKENS + 8


@pytest.fixture(autouse=True)
def too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message is taken to have ten times as many tokens as it has."""
    monkeypatch.setattr(mapping, "_MESSAGE_OVERHEAD_TOKENS", 10 * NUM_PROMPT_TOKENS)


@pytest.mark.parametrize("quota", ["tokens_per_minute", "tokens_per_day", "tokens_per_month"])
async def test_a_prompt_that_fits_a_quota_is_served_whatever_it_was_taken_for(
    client: httpx.AsyncClient, services: ScriptedServices, quota: str
) -> None:
    await bound(client, **{quota: NUM_CHARGED})
    assert (await client.post(PATH, json=CHAT)).status_code == 200
    assert services.gateway.permits[0].weight.charged_tokens == NUM_CHARGED
    second = await client.post(PATH, json={**CHAT, "max_tokens": 1})
    assert error_of(second, status=429)["code"] in ("rate_limit_exceeded", "insufficient_quota")


async def test_a_prompt_that_fits_what_is_left_of_the_day_is_served(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    await bound(client, tokens_per_day=3 * NUM_CHARGED)
    assert (await client.post(PATH, json=CHAT)).status_code == 200
    await end(services, used=Spent(NUM_PROMPT_TOKENS, 8))
    assert (await client.post(PATH, json=CHAT)).status_code == 200
    await end(services, used=Spent(NUM_PROMPT_TOKENS, 8))
    assert (await client.post(PATH, json={**CHAT, "max_tokens": 9})).status_code == 429
    assert (await client.post(PATH, json=CHAT)).status_code == 200


async def test_a_prompt_that_fits_the_queue_is_served_whatever_it_was_taken_for(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    gateway.change_view(tunables=Tunables(max_queue_tokens=NUM_PROMPT_TOKENS, urgent_queue_ratio=0))
    assert (await client.post(PATH, json=CHAT)).status_code == 200
    assert gateway.permits[0].weight.tokens == NUM_PROMPT_TOKENS


async def test_what_is_certain_never_to_fit_is_refused_for_good(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    await bound(client, tokens_per_minute=NUM_CHARGED - 1)
    response = await client.post(PATH, json=CHAT)
    assert f"asks for {NUM_CHARGED} alone" in error_of(response, status=429)["message"]
    assert response.headers["x-should-retry"] == "false"
    await bound(client, tokens_per_minute=10_000)
    gateway.change_view(tunables=Tunables(max_queue_tokens=NUM_PROMPT_TOKENS - 1, urgent_queue_ratio=0))
    response = await client.post(PATH, json=CHAT)
    assert error_of(response, status=429)["code"] == "queue_full"
    assert response.headers["x-should-retry"] == "false"
    assert gateway.generations == []
