"""Tenants and quotas over REST, for keys with the scope `admin`."""

from __future__ import annotations

import datetime
from typing import Any

import httpx
import pytest
from django.utils import timezone

from serving.admission.keys import KeyText
from serving.admission.services import create_key
from serving.admission.usage import UsageRow, add_usage
from serving.contracts.quotas import Quotas, quota_names
from serving.threads import in_thread
from serving.tuning.services import ensure_pool
from tests.api.conftest import POOL, ScriptedServices
from tests.api.tenancy import TENANTS, get, new_key, new_tenant, problem

NO_QUOTAS = Quotas().as_dict()


async def test_a_tenant_is_made_read_listed_and_changed(client: httpx.AsyncClient) -> None:
    made = await new_tenant(client, weight=2, quotas={"requests_per_minute": 5, "tokens_per_day": None})
    path = f"{TENANTS}/{made['id']}"
    assert made == {
        "id": made["id"],
        "name": "acme",
        "weight": 2.0,
        "most_urgent": 0,
        "pools": None,
        "enabled": True,
        "keeps_text": False,
        "quotas": {**NO_QUOTAS, "requests_per_minute": 5},
        "quotas_version": 1,
        "created_at": made["created_at"],
    }
    assert await get(client, path) == made
    listed = await get(client, TENANTS)
    assert listed["has_more"] is False
    assert [tenant["name"] for tenant in listed["data"]] == ["tests", "acme"]
    assert listed["data"][1] == made
    changed = await client.patch(
        path,
        json={
            "name": "Acme Ltd",
            "most_urgent": -10,
            "keeps_text": True,
            "quotas": {"tokens_per_day": 9, "requests_per_minute": None},
        },
    )
    assert changed.status_code == 200
    assert changed.json() == {
        **made,
        "name": "Acme Ltd",
        "most_urgent": -10,
        "keeps_text": True,
        "quotas": {**NO_QUOTAS, "tokens_per_day": 9},
        "quotas_version": 2,
    }
    # What is so already stays so.
    assert (await client.patch(path, json={"name": "Acme Ltd", "enabled": True})).json() == changed.json()
    assert (await client.patch(path, json={})).json() == changed.json()


async def test_every_quota_can_be_set_and_taken_away(client: httpx.AsyncClient) -> None:
    assert quota_names() == (
        "requests_per_minute",
        "tokens_per_minute",
        "tokens_per_day",
        "tokens_per_month",
        "max_concurrent_requests",
        "max_prompt_tokens",
        "max_output_tokens",
    )
    quotas = {name: number for number, name in enumerate(quota_names(), 1)}
    made = await new_tenant(client, quotas=quotas)
    assert made["quotas"] == quotas
    none = dict.fromkeys(quota_names())
    assert (await client.patch(f"{TENANTS}/{made['id']}", json={"quotas": none})).json()["quotas"] == none


async def test_pools_are_given_changed_and_taken_back(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    await in_thread(ensure_pool, "bulk", "another")
    made = await new_tenant(client, pools=["bulk", POOL])
    path = f"{TENANTS}/{made['id']}"
    assert made["pools"] == ["bulk", POOL]
    assert (await get(client, TENANTS))["data"][1]["pools"] == ["bulk", POOL]
    key = await new_key(client, made)

    async def at_the_door() -> Any:
        # A door asks anew as soon as the epoch is another.
        return (await services.authenticator.authenticate(f"Bearer {key['key']}")).account.pools

    assert await at_the_door() == ("bulk", POOL)
    for pools in ([POOL], None, ["bulk"]):
        changed = await client.patch(path, json={"pools": pools, "reason": "a test"})
        assert (changed.status_code, changed.json()) == (200, {**made, "pools": pools})
        assert await at_the_door() == (None if pools is None else tuple(pools))
    # Left out it stays, as all else does.
    assert (await client.patch(path, json={"weight": 1})).json() == {**made, "pools": ["bulk"]}
    assert (await client.patch(path, json={"name": None, "enabled": None})).json() == {**made, "pools": ["bulk"]}
    audit = (await get(client, f"{path}/audit"))["data"]
    assert [entry["changes"] for entry in audit if "pools" in entry["changes"]] == [
        {"pools": [None, ["bulk"]]},
        {"pools": [[POOL], None]},
        {"pools": [["bulk", POOL], [POOL]]},
        {"name": [None, "acme"], "pools": [None, ["bulk", POOL]]},
    ]
    assert (await new_tenant(client, "other", pools=None))["pools"] is None


@pytest.mark.parametrize(
    ("name", "told"), [("nowhere", "'nowhere'"), ("a\0b", r"'a\x00b'"), ("x" * 10_000, "xxx…"), ("", "''")]
)
async def test_pools_that_do_not_exist_are_refused_with_those_that_do(
    client: httpx.AsyncClient, name: str, told: str
) -> None:
    await in_thread(ensure_pool, "bulk", "another")
    made = await new_tenant(client)
    for response in (
        await client.patch(f"{TENANTS}/{made['id']}", json={"pools": [POOL, name], "weight": 3}),
        await client.post(TENANTS, json={"name": "other", "pools": [name]}),
    ):
        assert problem(response) == (400, "invalid_value", "pools")
        message = response.json()["error"]["message"]
        assert f"names of pools, of which there are: bulk, {POOL}, not [" in message
        assert told in message
    assert await get(client, f"{TENANTS}/{made['id']}") == made
    assert len((await get(client, TENANTS))["data"]) == 2


async def test_lists_come_in_pages(client: httpx.AsyncClient) -> None:
    for number in range(3):
        await new_tenant(client, f"tenant {number}")
    first = await get(client, f"{TENANTS}?limit=2")
    assert ([tenant["name"] for tenant in first["data"]], first["has_more"]) == (["tests", "tenant 0"], True)
    rest = await get(client, f"{TENANTS}?limit=2&after={first['data'][-1]['id']}")
    assert ([tenant["name"] for tenant in rest["data"]], rest["has_more"]) == (["tenant 1", "tenant 2"], False)
    assert (await get(client, f"{TENANTS}?after={2**63 - 1}"))["data"] == []
    for query in ("limit=0", "limit=1001", "limit=x", "limit=-1", "limit=", "limit=²", "after=-1", f"after={2**63}"):
        response = await client.get(f"{TENANTS}?{query}")
        assert problem(response) == (400, "invalid_value", query.partition("=")[0])
    assert problem(await client.get(f"{TENANTS}?" + "a=1&" * 2000))[0] == 400


async def test_a_name_that_is_taken_is_a_conflict(client: httpx.AsyncClient) -> None:
    await new_tenant(client)
    other = await new_tenant(client, "other")
    assert problem(await client.post(TENANTS, json={"name": "acme"})) == (409, "name_taken", "name")
    changed = await client.patch(f"{TENANTS}/{other['id']}", json={"name": "acme"})
    assert problem(changed) == (409, "name_taken", "name")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "name", ["name"]),
        ({"name": ""}, "name", ["1 to 100"]),
        ({"name": "  "}, "name", ["1 to 100"]),
        ({"name": "x" * 101}, "name", ["100"]),
        ({"name": "a\0b"}, "name", ["NUL"]),
        ({"name": 5}, "name", ["5"]),
        ({"name": "a", "weight": 0}, "weight", ["weight", "0.01", "1000"]),
        ({"name": "a", "weight": "2"}, "weight", ["weight"]),
        ({"name": "a", "weight": 10**400}, "weight", ["1000"]),
        ({"name": "a", "most_urgent": -101}, "most_urgent", ["-101", "-100"]),
        ({"name": "a", "most_urgent": 1.5}, "most_urgent", ["1.5"]),
        ({"name": "a", "enabled": "yes"}, "enabled", ["true or false"]),
        ({"name": "a", "pools": []}, "pools", ["1 to 16", "[]"]),
        ({"name": "a", "pools": [POOL] * 2}, "pools", ["1 to 16", "twice"]),
        ({"name": "a", "pools": [POOL] * 17}, "pools", ["1 to 16"]),
        ({"name": "a", "pools": POOL}, "pools", ["a list of", POOL]),
        ({"name": "a", "pools": [1]}, "pools", ["a list of", "1"]),
        ({"name": "a", "pools": [None]}, "pools", ["a list of"]),
        ({"name": "a", "pools": {POOL: 1}}, "pools", ["a list of"]),
        ({"name": "a", "quotas": []}, "quotas", ["quotas"]),
        ({"name": "a", "quotas": {"tokens_per_day": 0}}, "tokens_per_day", ["tokens_per_day", "0", "1 to"]),
        ({"name": "a", "quotas": {"tokens_per_day": True}}, "tokens_per_day", ["True"]),
        ({"name": "a", "quotas": {"tokens_per_day": 1.0}}, "tokens_per_day", ["1.0"]),
        ({"name": "a", "quotas": {"tokens_per_day": "9"}}, "tokens_per_day", ["'9'"]),
        ({"name": "a", "quotas": {"tokens_per_day": 10**400}}, "tokens_per_day", ["1 to"]),
        ({"name": "a", "quotas": {"tokens_per_dya": 1}}, "tokens_per_dya", ["tokens_per_day"]),
        ({"name": "a", "colour": "red"}, "colour", ["colour"]),
        ({"name": "a", "reason": "a\0b"}, "reason", ["NUL"]),
        ({"name": "a", "reason": "x" * 501}, "reason", ["500"]),
    ],
)
async def test_senseless_tenants_are_refused_naming_field_value_and_bounds(
    client: httpx.AsyncClient, body: dict[str, Any], param: str, words: list[str]
) -> None:
    response = await client.post(TENANTS, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert all(word in response.json()["error"]["message"] for word in words)
    if "name" in body and body["name"] == "a":
        made = await new_tenant(client)
        changed = await client.patch(
            f"{TENANTS}/{made['id']}", json={name: value for name, value in body.items() if name != "name"}
        )
        assert (changed.status_code, changed.json()["error"]["param"]) == (400, param)
        assert await get(client, f"{TENANTS}/{made['id']}") == made
    assert [tenant["name"] for tenant in (await get(client, TENANTS))["data"]] in (["tests"], ["tests", "acme"])


@pytest.mark.parametrize("tenant", ["0", "999999", "x", "-1", "1.0", "%00", "²", "9" * 18, "9" * 400, "1%20"])
async def test_an_unknown_tenant_is_not_found(client: httpx.AsyncClient, tenant: str) -> None:
    path = f"{TENANTS}/{tenant}"
    missing = (404, "tenant_not_found", None)
    for below in ("", "/usage", "/audit", "/keys", "/quotas/versions", "/keys/0123456789ab"):
        assert problem(await client.get(path + below)) == missing
    assert problem(await client.patch(path, json={"weight": 2})) == missing
    assert problem(await client.post(f"{path}/keys", json={"scopes": ["generate"]})) == missing
    assert problem(await client.post(f"{path}/quotas/rollback", json={"version": 0})) == missing
    assert problem(await client.delete(f"{path}/keys/0123456789ab")) == missing


async def test_quotas_of_tenant_and_key_are_versions_that_roll_back(client: httpx.AsyncClient) -> None:
    tenant = await new_tenant(client, quotas={"tokens_per_day": 100}, reason="to begin with")
    key = await new_key(client, tenant, quotas={"tokens_per_day": 50})
    for path in (f"{TENANTS}/{tenant['id']}", f"{TENANTS}/{tenant['id']}/keys/{key['prefix']}"):
        first = (await get(client, f"{path}/quotas/versions"))["data"][0]
        assert (first["version"], first["author"].startswith("tests, key ")) == (1, True)
        changed = await client.patch(path, json={"quotas": {"tokens_per_day": 7}, "reason": "too much", "based_on": 1})
        assert (changed.json()["quotas"]["tokens_per_day"], changed.json()["quotas_version"]) == (7, 2)
        stale = await client.patch(path, json={"quotas": {"tokens_per_day": 8}, "based_on": 1})
        assert problem(stale)[:2] == (409, "stale_version")
        if "keys" not in path:
            without = await client.patch(path, json={"weight": 3, "based_on": 2})
            assert problem(without) == (400, "invalid_value", "based_on")
        same = await client.patch(path, json={"quotas": {"tokens_per_day": 7}})
        assert problem(same) == (400, "invalid_value", "quotas")
        back = await client.post(f"{path}/quotas/rollback", json={"version": 1, "reason": "too little", "based_on": 2})
        assert back.json() == {
            **first,
            "version": 3,
            "changes": {"tokens_per_day": [7, first["quotas"]["tokens_per_day"]]},
            "reason": "too little",
            "created_at": back.json()["created_at"],
        }
        for wrong in (9, -1, "1", 2**31, True):
            refused = await client.post(f"{path}/quotas/rollback", json={"version": wrong})
            assert problem(refused) == (400, "invalid_value", "version")
        assert (await client.post(f"{path}/quotas/rollback", json={"version": 0})).json()["quotas"] == NO_QUOTAS
        versions = (await get(client, f"{path}/quotas/versions"))["data"]
        assert [version["version"] for version in versions] == [4, 3, 2, 1]
        assert [v["version"] for v in (await get(client, f"{path}/quotas/versions?before=3"))["data"]] == [2, 1]
        assert (await get(client, path))["quotas_version"] == 4


async def test_usage_is_told_by_day_and_by_key(client: httpx.AsyncClient) -> None:
    tenant = await new_tenant(client)
    today = timezone.now().date()
    yesterday = today - datetime.timedelta(days=1)
    rows = [
        UsageRow(tenant_id=tenant["id"], key_prefix=key, day=day, num_requests=1, prompt_tokens=5, completion_tokens=2)
        for key, day in (("a" * 12, today), ("b" * 12, today), ("a" * 12, yesterday))
    ]
    await in_thread(add_usage, rows)
    path = f"{TENANTS}/{tenant['id']}/usage"
    usage = await get(client, path)
    assert usage["data"] == [
        {"day": str(yesterday), "num_requests": 1, "prompt_tokens": 5, "completion_tokens": 2},
        {"day": str(today), "num_requests": 2, "prompt_tokens": 10, "completion_tokens": 4},
    ]
    assert [(key["key_prefix"], key["prompt_tokens"]) for key in usage["keys"]] == [("a" * 12, 10), ("b" * 12, 5)]
    assert usage["tokens_today"] == 14
    assert usage["tokens_this_month"] in (14, 21)
    assert [day["day"] for day in (await get(client, f"{path}?since={today}"))["data"]] == [str(today)]
    tomorrow = today + datetime.timedelta(days=1)
    for since in ("", "x", "2026-13-01", "0001-01-01", "9999-12-31", "%00", str(tomorrow)):
        assert problem(await client.get(f"{path}?since={since}")) == (400, "invalid_value", "since")


async def test_audit_tells_who_changed_what(client: httpx.AsyncClient, key: KeyText) -> None:
    tenant = await new_tenant(client)
    made = await new_key(client, tenant, reason="for the tests")
    await client.patch(f"{TENANTS}/{tenant['id']}", json={"weight": 3, "reason": "more"})
    entries = (await get(client, f"{TENANTS}/{tenant['id']}/audit"))["data"]
    assert [(entry["action"], entry["key"], entry["reason"]) for entry in entries] == [
        ("tenant changed", None, "more"),
        ("key made", made["prefix"], "for the tests"),
        ("tenant made", None, ""),
    ]
    assert entries[0]["changes"] == {"weight": [1.0, 3.0]}
    assert {entry["author"] for entry in entries} == {f"tests, key {key.prefix}"}


@pytest.mark.parametrize("scope", ["generate", "batch", "observe", "operate"])
async def test_no_other_scope_reads_or_changes_tenants(client: httpx.AsyncClient, scope: str) -> None:
    tenant = await new_tenant(client)
    other = await in_thread(create_key, "others", scopes=[scope])
    client.headers["Authorization"] = f"Bearer {other.text}"
    path = f"{TENANTS}/{tenant['id']}"
    for below in ("", f"/{tenant['id']}", f"/{tenant['id']}/keys", f"/{tenant['id']}/usage", f"/{tenant['id']}/audit"):
        assert problem(await client.get(TENANTS + below))[:2] == (403, "permission_denied")
    assert (await client.post(TENANTS, json={"name": "mine"})).status_code == 403
    assert (await client.patch(path, json={"enabled": False})).status_code == 403
    assert (await client.post(f"{path}/keys", json={"scopes": ["admin"]})).status_code == 403
