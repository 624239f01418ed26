"""Keys over REST: shown once, good until they are revoked, and told by nobody."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from django.apps import apps

from serving.contracts.quotas import Quotas
from serving.threads import in_thread
from tests.api.conftest import MODEL
from tests.api.tenancy import TENANTS, get, list_models, new_key, new_tenant, problem


@pytest.mark.parametrize("prefix", ["0123456789ab", "x", "%00", "0123456789AB", "0" * 17, "²"])
async def test_an_unknown_key_is_not_found(client: httpx.AsyncClient, prefix: str) -> None:
    tenant = await new_tenant(client)
    path = f"{TENANTS}/{tenant['id']}/keys/{prefix}"
    missing = (404, "key_not_found", None)
    assert problem(await client.get(path)) == missing
    assert problem(await client.get(f"{path}/quotas/versions")) == missing
    assert problem(await client.patch(path, json={"quotas": {"tokens_per_day": 1}})) == missing
    assert problem(await client.post(f"{path}/quotas/rollback", json={"version": 0})) == missing
    assert problem(await client.post(f"{path}/revoke")) == missing
    assert problem(await client.delete(path)) == missing


async def test_a_key_opens_until_it_is_revoked(client: httpx.AsyncClient) -> None:
    tenant = await new_tenant(client)
    made = await new_key(client, tenant, label="first", expires_at="2030-01-31T12:00:00+02:00")
    text = made.pop("key")
    assert text.startswith(f"fp-{made['prefix']}-")
    assert made == {
        "prefix": made["prefix"],
        "label": "first",
        "scopes": ["generate"],
        "created_at": made["created_at"],
        "expires_at": "2030-01-31T10:00:00Z",
        "revoked_at": None,
        "last_used_at": None,
        "quotas": Quotas().as_dict(),
        "quotas_version": 0,
    }
    path = f"{TENANTS}/{tenant['id']}/keys/{made['prefix']}"
    assert await get(client, path) == made
    assert (await list_models(client, text)).status_code == 200
    revoked = await client.delete(path)
    assert (revoked.status_code, revoked.json()["revoked_at"] is not None) == (200, True)
    assert problem(await list_models(client, text)) == (401, "invalid_api_key", None)
    assert (await client.delete(path)).json()["revoked_at"] == revoked.json()["revoked_at"]
    assert (await client.post(f"{path}/revoke")).json()["revoked_at"] == revoked.json()["revoked_at"]
    (listed,) = (await get(client, f"{TENANTS}/{tenant['id']}/keys"))["data"]
    assert listed["revoked_at"] == revoked.json()["revoked_at"]


async def test_revoking_by_post_counts_at_once_too(client: httpx.AsyncClient) -> None:
    tenant = await new_tenant(client)
    made = await new_key(client, tenant)
    assert (await list_models(client, made["key"])).status_code == 200
    assert (await client.post(f"{TENANTS}/{tenant['id']}/keys/{made['prefix']}/revoke")).status_code == 200
    assert (await list_models(client, made["key"])).status_code == 401


async def test_a_disabled_tenants_keys_open_nothing_until_it_is_enabled(client: httpx.AsyncClient) -> None:
    tenant = await new_tenant(client)
    made = await new_key(client, tenant)
    for enabled, status in ((True, 200), (False, 401), (True, 200)):
        await client.patch(f"{TENANTS}/{tenant['id']}", json={"enabled": enabled})
        assert (await list_models(client, made["key"])).status_code == status


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"scopes": "generate"}, "scopes"),
        ({"scopes": ["generate"], "label": "x" * 101}, "label"),
        ({"scopes": ["generate"], "label": "a\0b"}, "label"),
        ({"scopes": ["generate"], "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"scopes": ["generate"], "expires_at": "2030-01-01T00:00:00"}, "expires_at"),
        ({"scopes": ["generate"], "expires_at": "9999-12-31T23:59:59-23:59"}, "expires_at"),
        ({"scopes": ["generate"], "expires_at": "0001-01-01T00:00:00+23:59"}, "expires_at"),
        ({"scopes": ["generate"], "expires_at": "soon"}, "expires_at"),
        ({"scopes": ["generate"], "expires_at": 1}, "expires_at"),
        ({"scopes": ["generate"], "quotas": {"tokens_per_day": -1}}, "tokens_per_day"),
        ({"scopes": ["generate"], "quotas": {"tokens": 1}}, "tokens"),
        ({"scopes": ["generate"], "prefix": "mine"}, "prefix"),
    ],
)
async def test_senseless_keys_are_refused_naming_the_field(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    tenant = await new_tenant(client)
    response = await client.post(f"{TENANTS}/{tenant['id']}/keys", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert param in response.json()["error"]["message"]
    assert (await get(client, f"{TENANTS}/{tenant['id']}/keys"))["data"] == []


async def test_a_keys_secret_is_told_once_and_kept_nowhere(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """C84: no hit for the key in bodies, logs or any row of the database, whatever is done with it."""
    caplog.set_level(logging.DEBUG)
    tenant = await new_tenant(client)
    path = f"{TENANTS}/{tenant['id']}"
    made = await new_key(client, tenant, scopes=["generate", "operate"], label="to be kept")
    text = made["key"]
    secret = text.split("-", 2)[2]
    keys = f"{path}/keys"
    admin = {"Authorization": client.headers["Authorization"]}
    own = {"Authorization": f"Bearer {text}"}
    malformed = {"Authorization": f"Bearer {text}x"}
    told = [
        await client.get(keys),
        await client.get(f"{keys}/{made['prefix']}"),
        await client.get(f"{keys}/{text}"),
        await client.delete(f"{keys}/{text}"),
        await client.patch(f"{keys}/{made['prefix']}", json={"quotas": {"requests_per_minute": 1}}),
        await client.get(f"{path}/audit"),
        await client.get("/v1/models", headers=own),
        await client.get(f"/v1/models/x?key={text}", headers=own),
        await client.get(f"/v1/models/{text}", headers=own),
        await client.get(f"{TENANTS}?limit={text}"),
        await client.post(TENANTS, json={"name": "a", text: 1}),
        await client.post(TENANTS, json={"name": "a", "quotas": {text: 1}}),
        await client.post(TENANTS, json={"name": "a", "weight": text}),
        await client.post("/v1/completions", headers=own, json={"model": MODEL, "prompt": "hi", "temperature": 9}),
        await client.patch(
            "/ops/v1/pools/default/tunables", headers=own, json={"changes": {"max_running": 8}, "reason": "a test"}
        ),
        await client.get("/ops/v1/tenants", headers=own),
        await client.get("/v1/models", headers=malformed),
        await client.get("/v1/models", headers={"Authorization": f"Basic {text}"}),
        await client.delete(f"{keys}/{made['prefix']}", headers=admin),
        await client.get("/v1/models", headers=own),
    ]
    assert [response.status_code for response in told] == [
        *(200, 200, 404, 404, 200, 200, 200, 404, 404, 400, 400, 400, 400, 400, 200, 403, 401, 401, 200, 401)
    ]
    assert all(secret not in response.text and secret not in str(response.headers) for response in told)
    # The client of the test logs the addresses that it asks.
    logged = [record for record in caplog.records if not record.name.startswith("http")]
    assert not [record for record in logged if secret in record.getMessage() or secret in str(record.exc_text)]
    rows = await in_thread(every_row)
    assert any(made["prefix"] in row for row in rows)
    assert not [row for row in rows if secret in row]


async def test_a_key_that_was_pasted_into_a_text_is_neither_kept_nor_repeated(client: httpx.AsyncClient) -> None:
    """C84: a key in a name, a label or a reason, which others read, is refused without its secret."""
    tenant = await new_tenant(client)
    made = await new_key(client, tenant)
    text, path = made["key"], f"{TENANTS}/{tenant['id']}"
    key_path = f"{path}/keys/{made['prefix']}"
    tunables = "/ops/v1/pools/default/tunables"
    refused = [
        (await client.post(TENANTS, json={"name": text}), "name"),
        (await client.patch(path, json={"name": f"my {text}"}), "name"),
        (await client.patch(path, json={"weight": 2, "reason": text}), "reason"),
        (await client.patch(path, json={"quotas": {"tokens_per_day": 1}, "reason": text}), "reason"),
        (await client.post(f"{path}/quotas/rollback", json={"version": 0, "reason": text}), "reason"),
        (await client.post(f"{path}/keys", json={"scopes": ["generate"], "label": text}), "label"),
        (await client.post(f"{path}/keys", json={"scopes": ["generate"], "reason": text}), "reason"),
        (await client.patch(key_path, json={"quotas": {"tokens_per_day": 1}, "reason": text}), "reason"),
        (await client.patch(tunables, json={"changes": {"max_running": 8}, "reason": text}), "reason"),
        (await client.post(f"{tunables}/rollback", json={"version": 1, "reason": text}), "reason"),
    ]
    secret = text.split("-", 2)[2]
    for response, param in refused:
        assert problem(response) == (400, "invalid_value", param)
        assert secret[:6] not in response.text
    assert not [row for row in await in_thread(every_row) if secret in row]


async def test_nobody_on_the_way_may_keep_the_answer_that_shows_a_key(client: httpx.AsyncClient) -> None:
    tenant = await new_tenant(client)
    response = await client.post(f"{TENANTS}/{tenant['id']}/keys", json={"scopes": ["generate"]})
    assert (response.status_code, response.headers["cache-control"]) == (201, "no-store")


def every_row() -> list[str]:
    """Every row of every table, in words."""
    return [str(row) for model in apps.get_models() for row in model._default_manager.values()]


async def test_what_is_changed_counts_for_the_next_request_of_a_key_in_use(client: httpx.AsyncClient) -> None:
    tenant = await new_tenant(client)
    made = await new_key(client, tenant)
    path = f"{TENANTS}/{tenant['id']}"

    async def complete() -> httpx.Response:
        return await client.post(
            "/v1/completions",
            headers={"Authorization": f"Bearer {made['key']}"},
            json={"model": MODEL, "prompt": "hello", "max_tokens": 9, "priority": -5},
        )

    assert problem(await complete()) == (400, "invalid_value", "priority")
    await client.patch(path, json={"most_urgent": -5})
    assert (await complete()).status_code == 200
    await client.patch(path, json={"quotas": {"max_output_tokens": 8}})
    assert problem(await complete())[0] == 400
    await client.post(f"{path}/quotas/rollback", json={"version": 0})
    assert (await complete()).status_code == 200
    await client.patch(f"{path}/keys/{made['prefix']}", json={"quotas": {"max_prompt_tokens": 4}})
    assert problem(await complete())[:2] == (400, "prompt_too_long")
    await client.patch(path, json={"enabled": False})
    assert problem(await complete()) == (401, "invalid_api_key", None)
