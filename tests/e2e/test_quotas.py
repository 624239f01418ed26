"""Quotas through the whole product: counted at the door, settled at the end, kept in the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model]


@pytest.fixture
def operator(stack: Stack) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {stack.first_run['api_key']}"}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
def tenant(operator: httpx.Client) -> dict[str, Any]:
    made: dict[str, Any] = operator.post("/ops/v1/tenants", json={"name": f"tenant {time.time_ns()}"}).json()
    return made


@pytest.fixture
def own_client(stack: Stack, operator: httpx.Client, tenant: dict[str, Any]) -> Iterator[openai.OpenAI]:
    key = operator.post(f"/ops/v1/tenants/{tenant['id']}/keys", json={"scopes": ["generate"]}).json()["key"]
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.1)


def bound(operator: httpx.Client, tenant: dict[str, Any], **quotas: int | None) -> None:
    response = operator.patch(f"/ops/v1/tenants/{tenant['id']}", json={"quotas": quotas})
    assert response.status_code == 200, response.text


def remaining_tokens(client: openai.OpenAI) -> int:
    return int(client.models.with_raw_response.list().headers["x-ratelimit-remaining-tokens"])


def test_used_tokens_are_counted_once_and_kept(
    operator: httpx.Client, tenant: dict[str, Any], own_client: openai.OpenAI, model: str
) -> None:
    bound(operator, tenant, tokens_per_minute=1000, tokens_per_day=1000, max_concurrent_requests=1)
    answer = own_client.completions.create(model=model, prompt="Once upon a time", max_tokens=20, n=2)
    eventually(lambda: remaining_tokens(own_client) == 1000 - answer.usage.total_tokens)
    usage_path = f"/ops/v1/tenants/{tenant['id']}/usage"
    eventually(lambda: bool(operator.get(usage_path).json()["data"]))
    (day,) = operator.get(usage_path).json()["data"]
    assert (day["num_requests"], day["prompt_tokens"], day["completion_tokens"]) == (
        1,
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )


def test_clients_that_leave_are_charged_what_they_were_served(
    operator: httpx.Client, tenant: dict[str, Any], own_client: openai.OpenAI, model: str, stack: Stack
) -> None:
    """C14: afterwards nothing is in use."""
    bound(operator, tenant, tokens_per_minute=5000, max_concurrent_requests=3)
    streams = [
        own_client.completions.create(model=model, prompt="Count to a thousand:", max_tokens=1000, stream=True)
        for _ in range(3)
    ]
    for stream in streams:
        next(iter(stream))
    with pytest.raises(openai.RateLimitError) as caught:
        own_client.completions.create(model=model, prompt="Hi", max_tokens=1)
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert remaining_tokens(own_client) < 5000 - 3 * 1000
    for stream in streams:
        stream.close()
    stack.wait_until_idle()
    eventually(lambda: remaining_tokens(own_client) > 5000 - 3 * 1000)
    assert own_client.completions.create(model=model, prompt="Hi", max_tokens=1).choices[0].finish_reason == "length"


def test_spent_day_ends_the_service_at_once_and_raising_it_begins_it_again(
    operator: httpx.Client, tenant: dict[str, Any], own_client: openai.OpenAI, model: str
) -> None:
    bound(operator, tenant, tokens_per_day=30)
    own_client.completions.create(model=model, prompt="Hi", max_tokens=20)
    with pytest.raises(openai.RateLimitError) as caught:
        own_client.completions.create(model=model, prompt="Hi", max_tokens=20)
    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    bound(operator, tenant, tokens_per_day=1000)
    assert own_client.completions.create(model=model, prompt="Hi", max_tokens=1).choices
