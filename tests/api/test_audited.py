"""Whatever a key changes through the API, and whoever types a command, stands in the audit of everything."""

from __future__ import annotations

import io

import httpx
from django.core.management import call_command

from serving.admission.keys import KeyText
from serving.audit.models import AuditEvent
from serving.threads import in_thread
from tests.api.conftest import POOL, ScriptedServices
from tests.api.tenancy import TENANTS, new_key, new_tenant

TUNABLES = f"/ops/v1/pools/{POOL}/tunables"


async def test_acts_of_a_key_name_the_key_and_the_call(client: httpx.AsyncClient, key: KeyText) -> None:
    tenant = await new_tenant(client)
    made = await new_key(client, tenant)
    changed = await client.patch(TUNABLES, json={"changes": {"max_running": 7}, "reason": "fewer"})
    rolled_back = await client.post(f"{TUNABLES}/rollback", json={"version": 1})
    revoked = await client.delete(f"{TENANTS}/{tenant['id']}/keys/{made['prefix']}")
    who = f"tests, key {key.prefix}"
    events = {event.action: event async for event in AuditEvent.objects.filter(actor=who, actor_kind="key")}
    assert set(events) == {"tenant made", "key made", "key revoked", "tunables changed", "tunables rolled back"}
    for action, response in (
        ("tunables changed", changed),
        ("tunables rolled back", rolled_back),
        ("key revoked", revoked),
    ):
        assert events[action].request_id == response.headers["X-Request-Id"], action
        assert events[action].address == "127.0.0.1"
    assert (events["tunables changed"].pool, events["tunables changed"].reason) == (POOL, "fewer")
    assert events["tunables changed"].changes["max_running"][1] == 7
    assert (events["key revoked"].subject, events["key revoked"].tenant) == (made["prefix"], "acme")
    # What was refused was not done.
    assert (await client.patch(TUNABLES, json={"changes": {"max_running": 0}})).status_code == 400
    assert await AuditEvent.objects.filter(action="tunables changed").acount() == 1


async def test_acts_of_the_command_line_say_so(client: httpx.AsyncClient, services: ScriptedServices) -> None:
    output = io.StringIO()
    await in_thread(call_command, "createuser", "olga", role="operator", stdout=output)
    event = await AuditEvent.objects.aget(action="user made", subject="olga")
    assert (event.actor, event.actor_kind, event.changes) == ("command line", "command", {"role": [None, "operator"]})
    password = output.getvalue().strip()
    assert password
    assert password not in repr([vars(event) async for event in AuditEvent.objects.all()])
