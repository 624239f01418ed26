"""Every refusal is counted by its reason: by the API before the door, by the pool from there on, and never by both."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serving.admission.keys import make_key
from serving.admission.services import create_key
from serving.contracts.errors import QueueTimeout
from serving.contracts.tunables import Tunables
from serving.telemetry.rejections import Rejections
from serving.threads import in_thread
from tests.api.conftest import MODEL, ScriptedGateway, ScriptedServices

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
BODIES = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/embeddings": {"model": MODEL, "input": "Hi"},
}


@pytest.mark.parametrize(
    ("method", "path", "changes", "status", "code"),
    [
        ("POST", "/v1/completions", {"headers": {"Authorization": "Bearer none"}}, 401, "invalid_api_key"),
        (
            "POST",
            "/v1/completions",
            {"headers": {"Authorization": f"Bearer {make_key().text}"}},
            401,
            "invalid_api_key",
        ),
        ("GET", "/ops/v1/tenants/7", {}, 404, "tenant_not_found"),
        ("POST", "/v1/completions", {"json": {**COMPLETION, "temperature": 9}}, 400, "invalid_value"),
        ("POST", "/v1/completions", {"json": {**COMPLETION, "no_such": 9}}, 400, "unknown_field"),
        ("POST", "/v1/completions", {"content": b"{"}, 400, "invalid_json"),
        ("POST", "/v1/completions", {"json": {"prompt": "Hi"}}, 400, "missing_field"),
        ("POST", "/v1/chat/completions", {"json": {**CHAT, "model": "none"}}, 404, "model_not_found"),
        ("POST", "/v1/chat/completions", {"json": {**CHAT, "messages": []}}, 400, "invalid_value"),
        ("POST", "/v1/nothing", {"json": {}}, 404, "not_found"),
        ("DELETE", "/v1/models", {}, 405, "method_not_allowed"),
    ],
)
async def test_what_is_refused_before_the_door_is_counted_by_its_code(
    client: httpx.AsyncClient,
    services: ScriptedServices,
    method: str,
    path: str,
    changes: dict[str, Any],
    status: int,
    code: str,
) -> None:
    response = await client.request(method, path, **changes)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert services.observer.rejections == [code]
    assert services.observer.num_submitted == 0


async def test_a_key_without_the_scope_is_counted(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    watching = await in_thread(create_key, "tests", scopes=["observe"])
    response = await client.post(
        "/v1/completions", json=COMPLETION, headers={"Authorization": f"Bearer {watching.text}"}
    )
    assert response.status_code == 403
    assert services.observer.rejections == ["permission_denied"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
async def test_what_is_refused_from_the_door_on_is_the_pools_to_count(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway, path: str
) -> None:
    body = BODIES[path]
    gateway.change_view(tunables=Tunables(max_queue_tokens=1))
    assert (await client.post(path, json=body)).status_code == 429
    gateway.change_view(tunables=Tunables())
    gateway.script = lambda _: [QueueTimeout("it waited too long")]
    assert (await client.post(path, json=body)).status_code == 408
    assert services.observer.rejections == []
    assert services.observer.outcomes == ["refused:queue_full"]


async def test_what_is_served_is_no_refusal(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code in (200, 503)
    assert services.observer.rejections == []


async def test_the_pools_list_tells_what_was_refused(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    rejections = Rejections()
    rejections.count("invalid_api_key")
    await rejections.publish(services.redis)
    assert (await client.get("/ops/v1/pools")).json()["rejected"] == {"invalid_api_key": 1}
    snapshot = (await client.get("/ops/v1/pools/default/snapshot")).json()
    assert snapshot["rejected"] == {"invalid_api_key": 1}
