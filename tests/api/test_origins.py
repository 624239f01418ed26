"""Who asked and how, as the log of requests hears it: of what runs, and of what is refused at the door."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import httpx
import pytest

from serving.admission.console_account import read_console_account
from serving.admission.keys import KeyText
from serving.admission.models import Tenant
from serving.api.prompting import Prompter
from serving.gateway.generation import Origin
from serving.threads import in_thread
from tests.api.conftest import MODEL, POOL, ScriptedServices

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
COMPLETION = {"model": MODEL, "prompt": ["Hi", "you"], "max_tokens": 4}
EMBEDDING = {"model": MODEL, "input": "Hi"}


async def tenant_named(name: str) -> Tenant:
    return await Tenant.objects.aget(name=name)


@pytest.mark.parametrize(
    ("path", "body", "endpoint", "is_streamed"),
    [
        ("/v1/chat/completions", CHAT, "chat", False),
        ("/v1/chat/completions", {**CHAT, "stream": True}, "chat", True),
        ("/v1/completions", COMPLETION, "completion", False),
        ("/v1/embeddings", EMBEDDING, "embedding", False),
    ],
)
async def test_a_request_says_whose_it_is_and_what_was_asked_for(
    client: httpx.AsyncClient,
    services: ScriptedServices,
    key: KeyText,
    path: str,
    body: dict[str, Any],
    endpoint: Any,
    is_streamed: bool,
) -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert (await client.post(path, json=body, headers={"traceparent": traceparent})).status_code == 200
    expected = Origin(
        endpoint=endpoint,
        is_streamed=is_streamed,
        traceparent=traceparent,
        tenant_id=(await tenant_named("tests")).pk,
        tenant_name="tests",
        key_prefix=key.prefix,
    )
    assert {generation.origin for generation in services.gateway.generations} == {expected}
    ids = [generation.request_id for generation in services.gateway.generations]
    assert len(set(ids)) == len(ids) == (2 if endpoint == "completion" else 1)


async def test_texts_may_be_kept_from_the_next_request_on(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    await client.post("/v1/chat/completions", json=CHAT)
    tenant = await tenant_named("tests")
    assert (await client.patch(f"/ops/v1/tenants/{tenant.pk}", json={"keeps_text": True})).status_code == 200
    await client.post("/v1/chat/completions", json=CHAT)
    assert [generation.origin.keeps_text for generation in services.gateway.generations] == [False, True]


async def test_what_is_refused_at_the_door_is_told_with_its_reason(
    client: httpx.AsyncClient, services: ScriptedServices, key: KeyText
) -> None:
    tenant = await tenant_named("tests")
    await client.patch(f"/ops/v1/tenants/{tenant.pk}", json={"quotas": {"requests_per_minute": 1}})
    statuses = [
        (await client.post("/v1/chat/completions", json={**CHAT, "n": 3, "priority": 2, "timeout": 9})).status_code
        for _ in range(2)
    ]
    assert statuses == [200, 429]
    (refused,) = services.observer.ends
    assert refused.outcome == "refused:rate_limit_exceeded"
    assert refused.request_id.startswith("req_")
    assert (refused.pool, refused.num_choices, refused.priority, refused.timeout_seconds) == (POOL, 3, 2, 9.0)
    assert (refused.origin.endpoint, refused.origin.key_prefix) == ("chat", key.prefix)
    assert (refused.was_scheduled, refused.queue_seconds, refused.params, refused.spans) == (False, None, None, ())
    assert refused.e2e_seconds >= 0


async def test_the_consoles_own_requests_are_its_tenants(services: ScriptedServices, key: KeyText) -> None:
    async def read() -> Any:
        return await in_thread(read_console_account)

    prompter = Prompter(starter=services.starter, chat_templates=services.chat_templates, read_account=read)
    async with contextlib.AsyncExitStack() as cleanup:
        options: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0, "arrived_at": time.monotonic()}
        await prompter.prompt(POOL, "Hi", request_id="req_console", cleanup=cleanup, **options)
    (generation,) = services.gateway.generations
    assert generation.origin == Origin(
        endpoint="console",
        is_streamed=True,
        tenant_id=(await tenant_named("console")).pk,
        tenant_name="console",
    )
