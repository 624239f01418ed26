"""Steering over REST: tunables, their versions, and the state of a pool."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest
from asgiref.sync import sync_to_async
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.admission.services import create_key
from serving.contracts import keys
from serving.contracts.messages import AnnouncedTunables, decode_announced
from serving.contracts.tunables import Tunables, describe
from serving.threads import in_thread
from serving.tuning.services import ensure_pool, leave_out_others
from tests.api.conftest import CONTEXT, MODEL, POOL, ScriptedServices
from tests.api.envelope import error_of

TUNABLES = f"/ops/v1/pools/{POOL}/tunables"


async def patch(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.patch(TUNABLES, json={"reason": "a test", **body})


async def test_pools_are_listed(client: httpx.AsyncClient) -> None:
    assert (await client.get("/ops/v1/pools")).json() == {
        "data": [
            {
                "name": POOL,
                "model": MODEL,
                "tunables_version": 1,
                "not_configured_since": None,
                "num_engines": 1,
                "max_model_len": CONTEXT,
            },
        ],
        "rejected": {},
    }


async def test_without_redis_pools_are_listed_and_what_needs_it_is_unavailable(
    client: httpx.AsyncClient, services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RedisConnectionError("gone")

    monkeypatch.setattr(services.redis, "hgetall", fail)
    listed = await client.get("/ops/v1/pools")
    assert listed.status_code == 200
    assert listed.json()["rejected"] is None
    error = error_of(await client.get(f"/ops/v1/pools/{POOL}/snapshot"), status=503)
    assert error["code"] == "unavailable"


async def test_tunables_come_with_all_that_a_form_needs(client: httpx.AsyncClient) -> None:
    body = (await client.get(TUNABLES)).json()
    assert body["version"] == 1
    assert body["values"] == Tunables().as_dict()
    specs = {spec["name"]: spec for spec in body["tunables"]}
    assert list(specs) == [spec.name for spec in describe()]
    assert (specs["max_running"]["low"], specs["max_running"]["high"]) == (1, 1024)
    assert specs["mode"]["choices"] == ["continuous", "static"]
    assert all(spec["help"] for spec in specs.values())


async def test_change_is_a_new_version_and_announced(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    response = await patch(client, changes={"max_running": 8, "mode": "static"})
    assert response.status_code == 200
    body = response.json()
    assert body["version"] == 2
    assert body["values"]["max_running"] == 8
    assert body["changes"] == {"mode": ["continuous", "static"], "max_running": [32, 8]}
    assert body["reason"] == "a test"
    assert body["author"].startswith("tests, key ")
    stored = cast(bytes, await services.redis.get(keys.announced_tunables(POOL)))
    assert decode_announced(stored) == AnnouncedTunables(2, Tunables(max_running=8, mode="static"))
    assert (await client.get(TUNABLES)).json()["version"] == 2
    history = (await client.get(f"{TUNABLES}/versions")).json()["data"]
    assert [entry["version"] for entry in history] == [2, 1]
    assert {key: history[0][key] for key in body} == body


async def test_rolls_back_to_a_stored_version(client: httpx.AsyncClient) -> None:
    await patch(client, changes={"max_running": 8})
    response = await client.post(f"{TUNABLES}/rollback", json={"version": 1, "reason": "worse"})
    assert response.json()["version"] == 3
    assert response.json()["values"] == Tunables().as_dict()
    refused = await client.post(f"{TUNABLES}/rollback", json={"version": 9})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "version")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"changes": {"max_running": 0}}, "max_running", ["max_running", "0", "1024"]),
        ({"changes": {"max_running": True}}, "max_running", ["max_running"]),
        ({"changes": {"max_running": 1.5}}, "max_running", ["1.5"]),
        ({"changes": {"max_running": 10**400}}, "max_running", ["1024"]),
        ({"changes": {"batch_window_ms": 10**400}}, "batch_window_ms", ["10000"]),
        ({"changes": {"prefill_share": 2}}, "prefill_share", ["prefill_share", "2"]),
        ({"changes": {"mode": "fast"}}, "mode", ["fast", "static"]),
        ({"changes": {"max_runing": 1}}, "max_runing", ["max_running"]),
        ({"changes": {"max_running": 32}}, "changes", ["version 1"]),
        ({"changes": {}}, "changes", ["changes"]),
        ({}, "changes", ["changes"]),
        ({"changes": {"max_running": 8}, "reason": "x" * 501}, "reason", ["500"]),
        ({"changes": {"max_running": 8}, "reason": "a\0b"}, "reason", ["NUL"]),
        ({"changes": {"max_running": 8}, "based_on": "1"}, "based_on", ["based_on"]),
        ({"changes": {"max_running": 8}, "force": True}, "force", ["force"]),
    ],
)
async def test_senseless_changes_are_refused_naming_field_value_and_bounds(
    client: httpx.AsyncClient, body: dict[str, Any], param: str, words: list[str]
) -> None:
    response = await patch(client, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert all(word in response.json()["error"]["message"] for word in words)
    assert (await client.get(TUNABLES)).json()["version"] == 1


async def test_a_pool_for_long_prompts_must_exist_and_serve_the_model(client: httpx.AsyncClient) -> None:
    await in_thread(ensure_pool, "bulk", MODEL)
    await in_thread(ensure_pool, "elsewhere", "another")
    for wrong in (POOL, "nowhere", "elsewhere", "a b", "a\0b", "x" * 65, None, 1, ["bulk"]):
        response = await patch(client, changes={"long_prompt_pool": wrong})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "long_prompt_pool")
    assert "bulk" in (await patch(client, changes={"long_prompt_pool": "nowhere"})).json()["error"]["message"]
    assert (await patch(client, changes={"long_prompt_pool": "bulk"})).json()["values"]["long_prompt_pool"] == "bulk"
    spec = next(s for s in (await client.get(TUNABLES)).json()["tunables"] if s["name"] == "long_prompt_pool")
    assert (spec["kind"], spec["default"], spec["effect"], spec["unit"]) == ("name", "", "next request", "")


async def test_change_based_on_an_older_version_is_a_conflict(client: httpx.AsyncClient) -> None:
    assert (await patch(client, changes={"max_running": 8}, based_on=1)).status_code == 200
    response = await patch(client, changes={"max_running": 9}, based_on=1)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "stale_version")


async def test_roll_back_based_on_an_older_version_is_a_conflict(client: httpx.AsyncClient) -> None:
    await patch(client, changes={"max_running": 8})
    response = await client.post(f"{TUNABLES}/rollback", json={"version": 1, "based_on": 1})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "stale_version")
    response = await client.post(f"{TUNABLES}/rollback", json={"version": 1, "based_on": 2})
    assert (response.status_code, response.json()["version"]) == (200, 3)


async def test_snapshot_tells_the_pools_state_without_engines(client: httpx.AsyncClient) -> None:
    await patch(client, changes={"max_running": 8})
    snapshot = (await client.get(f"/ops/v1/pools/{POOL}/snapshot")).json()
    assert snapshot["tunables_version"] == 2
    for name in ("num_engines", "applied_by", "num_waiting", "num_waiting_tokens", "num_running"):
        assert snapshot[name] == 0
    for name in ("kv_blocks_total", "kv_blocks_used", "kv_blocks_cached", "kv_blocks_free"):
        assert snapshot[name] == 0
    assert "outcomes" in snapshot
    assert "intervals" in snapshot


async def test_a_pool_that_is_configured_no_longer_is_read_and_not_steered(client: httpx.AsyncClient) -> None:
    await in_thread(ensure_pool, "second", MODEL)
    await in_thread(leave_out_others, ["second"])
    listed = {pool["name"]: pool for pool in (await client.get("/ops/v1/pools")).json()["data"]}
    assert listed[POOL]["not_configured_since"] is not None
    assert (listed["second"]["not_configured_since"], listed["second"]["num_engines"]) == (None, 0)
    assert (await client.get(TUNABLES)).json()["version"] == 1
    assert len((await client.get(f"{TUNABLES}/versions")).json()["data"]) == 1
    for answer in (
        await patch(client, changes={"max_running": 8}),
        await client.post(f"{TUNABLES}/rollback", json={"version": 1}),
        await client.get(f"/ops/v1/pools/{POOL}/snapshot"),
    ):
        error = error_of(answer, status=409)
        assert error["code"] == "pool_not_configured"
        assert f"pool {POOL} is not configured since" in error["message"]


@pytest.mark.parametrize("path", ["tunables", "tunables/versions", "snapshot"])
@pytest.mark.parametrize("pool", ["nowhere", "no%00where"])
async def test_unknown_pool_is_not_found(client: httpx.AsyncClient, path: str, pool: str) -> None:
    response = await client.get(f"/ops/v1/pools/{pool}/{path}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "pool_not_found")


async def test_observer_may_read_and_not_change(client: httpx.AsyncClient) -> None:
    key = await sync_to_async(create_key)("watchers", scopes=["observe"])
    client.headers["Authorization"] = f"Bearer {key.text}"
    assert (await client.get(TUNABLES)).status_code == 200
    assert (await patch(client, changes={"max_running": 8})).status_code == 403
    assert (await client.post(f"{TUNABLES}/rollback", json={"version": 1})).status_code == 403
    assert (await client.get(TUNABLES)).json()["version"] == 1
