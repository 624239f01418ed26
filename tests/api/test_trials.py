"""Guardrails and canaries over REST."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async

from serving.admission.services import create_key
from serving.audit.models import AuditEvent
from serving.threads import in_thread
from tests.api.conftest import POOL, ScriptedServices
from tests.tuning.engines import beat, write_frame

PATH = f"/ops/v1/pools/{POOL}"
GUARDRAIL = {"metric": "ttft_p95", "bound": 800, "window_seconds": 30}


async def change(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.patch(f"{PATH}/tunables", json={"changes": {"max_running": 8}, **body})


async def audited() -> tuple[str, str, str]:
    event = await in_thread(AuditEvent.objects.filter(pool=POOL).latest, "pk")
    return event.action, event.actor_kind, event.reason


async def test_a_change_is_watched_and_its_guardrail_called_off(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{PATH}/guardrail")).json() == {"pool": POOL, "guardrail": None}
    assert (await client.delete(f"{PATH}/guardrail")).status_code == 409
    assert (await change(client, guardrail=GUARDRAIL)).status_code == 200
    guardrail = (await client.get(f"{PATH}/guardrail")).json()["guardrail"]
    shown = {name: guardrail[name] for name in ("version", "state", "watches", "watch_seconds", *GUARDRAIL)}
    assert shown == {"version": 2, "state": "watching", "watches": "pool", "watch_seconds": 600, **GUARDRAIL}
    for wrong in ("0", "x", "9" * 30):
        refused = (await client.delete(f"{PATH}/guardrail", params={"version": wrong})).json()["error"]
        assert refused["param"] == "version"
    refused = (await client.delete(f"{PATH}/guardrail", params={"reason": "a\0b"})).json()["error"]
    assert (refused["code"], refused["param"]) == ("invalid_value", "reason")
    ended = await client.delete(f"{PATH}/guardrail", params={"version": 2, "reason": "load test"})
    assert ended.json()["guardrail"]["state"] == "called_off"
    assert await audited() == ("guardrail called off", "key", "load test")
    again = (await client.delete(f"{PATH}/guardrail")).json()["error"]
    assert (again["code"], again["message"]) == (
        "stale_version",
        "version 2 is watched no longer: its guardrail was called off",
    )


async def test_a_canary_is_told_with_both_sides_and_promoted(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    redis = services.blocking_redis
    assert (await client.get(f"{PATH}/canary")).json() == {"pool": POOL, "canary": None}
    beat(redis, "engine-1", "engine-2")
    stored = await change(client, canary={"engine": "engine-2"}, guardrail=GUARDRAIL, reason="try it")
    assert (stored.status_code, stored.json()["version"]) == (200, 2)
    assert (await client.get(f"{PATH}/guardrail")).json()["guardrail"]["watches"] == "engine engine-2"
    canary = (await client.get(f"{PATH}/canary")).json()["canary"]
    assert (canary["version"], canary["in_force"], canary["engine"]) == (2, 1, "engine-2")
    assert (canary["engine_lives"], canary["measured_seconds"]) == (True, None)
    write_frame(redis, version=2, engine_id="engine-2")
    beat(redis, "engine-2", steps_total=10, step_seconds_total=0.5)
    canary = (await client.get(f"{PATH}/canary")).json()["canary"]
    tried, others = canary["tried"], canary["others"]
    assert canary["measured_seconds"] == 30
    assert (tried["engines"], others["engines"]) == (["engine-2"], ["engine-1"])
    assert (tried["intervals"]["ttft_seconds"]["p95"], others["intervals"]["ttft_seconds"]["count"]) == (0.1, 50)
    assert (tried["ended"]["finished"], tried["step_ms"], others["step_ms"]) == (40, 50.0, None)
    promoted = await client.post(f"{PATH}/canary/promote", json={"version": 2, "reason": "better"})
    assert promoted.json()["version"] == 2
    assert (await client.get(f"{PATH}/tunables")).json()["version"] == 2
    assert await audited() == ("canary taken to all", "key", "better")
    late = (await client.post(f"{PATH}/canary/withdraw", json={"version": 2})).json()["error"]
    assert (late["code"], late["message"]) == (
        "stale_version",
        "version 2 is not being tried any more: it is the newest, and on every engine",
    )


async def test_a_canary_is_withdrawn_by_a_new_version(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    await change(client, canary={})
    assert (await client.get(f"{PATH}/canary")).json()["canary"]["engine"] == "engine-1"
    assert (await change(client, changes={"max_running": 9})).json()["error"]["code"] == "canary_running"
    withdrawn = (await client.post(f"{PATH}/canary/withdraw", json={"version": 2})).json()
    assert (withdrawn["version"], withdrawn["changes"]) == (3, {"max_running": [8, 32]})


@pytest.mark.parametrize(
    ("terms", "param", "words"),
    [
        ({"guardrail": {"metric": "luck", "bound": 1}}, "guardrail metric", ["luck", "ttft_p95"]),
        ({"guardrail": {"metric": "ttft_p95"}}, "guardrail.bound", ["3600000"]),
        ({"guardrail": {"metric": "ttft_p95", "bound": -1}}, "guardrail.bound", ["-1", "3600000"]),
        ({"guardrail": {"metric": "error_ratio", "bound": 2}}, "guardrail bound", ["2", "from 0 to 1"]),
        ({"guardrail": {**GUARDRAIL, "window_seconds": 4}}, "guardrail.window_seconds", ["4", "5"]),
        ({"guardrail": {**GUARDRAIL, "watch_seconds": 1e9}}, "guardrail.watch_seconds", ["86400"]),
        ({"guardrail": {**GUARDRAIL, "luck": 1}}, "guardrail.luck", ["luck"]),
        ({"guardrail": True}, "guardrail", ["metric", "bound"]),
        ({"canary": True}, "canary", ["True", "engine"]),
        ({"canary": {"engine": "engine-9"}}, "canary engine", ["engine-9", "engine-1, engine-2"]),
        ({"canary": {"engine": "a\0b"}}, "canary engine", ["engine-1, engine-2"]),
        ({"canary": {"engine": ""}}, "canary.engine", ["id of an engine"]),
        ({"canary": {}, "changes": {"slo_ttft_ms": 5}}, "canary", ["slo_ttft_ms", "door"]),
    ],
)
async def test_terms_that_cannot_be_kept_are_refused_by_field_value_and_bound(
    client: httpx.AsyncClient, services: ScriptedServices, terms: dict[str, Any], param: str, words: list[str]
) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    response = await change(client, **terms)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert all(word in error["message"] for word in words), error["message"]
    assert (await client.get(f"{PATH}/tunables")).json()["version"] == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "guardrail"), ("GET", "canary"), ("DELETE", "guardrail"), ("POST", "canary/promote")],
)
async def test_unknown_pool_is_not_found(client: httpx.AsyncClient, method: str, path: str) -> None:
    body = {"version": 1} if method == "POST" else None
    for pool in ("nowhere", "no%00where"):
        response = await client.request(method, f"/ops/v1/pools/{pool}/{path}", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "pool_not_found")


async def test_observer_reads_and_ends_nothing(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    await change(client, canary={}, guardrail=GUARDRAIL)
    key = await sync_to_async(create_key)("watchers", scopes=["observe"])
    client.headers["Authorization"] = f"Bearer {key.text}"
    assert (await client.get(f"{PATH}/canary")).json()["canary"]["version"] == 2
    for way in ("promote", "withdraw"):
        assert (await client.post(f"{PATH}/canary/{way}", json={"version": 2})).status_code == 403
    assert (await client.delete(f"{PATH}/guardrail")).status_code == 403
    assert (await client.get(f"{PATH}/guardrail")).json()["guardrail"]["state"] == "watching"
