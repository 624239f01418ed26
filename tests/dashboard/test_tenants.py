"""A tenant's pages in the console: what it is, making and changing one, and who may."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from redis import ConnectionPool

from serving.admission import selectors
from serving.admission.epochs import read_epoch
from serving.admission.models import Tenant
from serving.admission.tenants import change_tenant
from serving.audit.models import AuditEvent
from serving.contracts.keys import quota_book, quota_charges, quota_leases
from serving.tuning.services import ensure_pool
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import (
    TENANTS,
    browser,
    errors_of,
    fields_of,
    in_thread,
    make_key,
    make_tenant,
    page_of,
    session_of,
    submit,
    words,
)

NEW = f"{TENANTS}new/"
SECRET = "fp-0123456789ab-" + "s" * 43


async def change(services: Services, tenant: Tenant, author: str = "ben", reason: str = "", **changes: Any) -> None:
    await in_thread(change_tenant)(tenant.pk, changes, author=author, redis=services.blocking_redis, reason=reason)


async def stored(tenant: Tenant) -> Tenant:
    return await Tenant.objects.aget(pk=tenant.pk)


# --- who may ---


def pages_of(tenant: Tenant, prefix: str) -> dict[str, list[str]]:
    """Paths of all pages about tenants, by who may open them."""
    base = f"{TENANTS}{tenant.pk}/"
    return {
        "readers": [
            TENANTS,
            base,
            f"{base}quotas/",
            f"{base}keys/",
            f"{base}keys/{prefix}/",
            f"{base}usage/",
            f"{base}usage.csv",
        ],
        "administrators": [NEW, f"{base}edit/", f"{base}keys/{prefix}/revoke/"],
    }


@pytest.mark.parametrize(
    ("role", "reads", "changes"),
    [("viewer", False, False), ("operator", False, False), ("auditor", True, False), ("admin", True, True)],
)
async def test_each_role_opens_its_pages_and_no_other(
    application: Any, services: Services, role: str, reads: bool, changes: bool
) -> None:
    """C86."""
    tenant = await make_tenant(services, quotas={"tokens_per_day": 5})
    prefix = (await make_key(services, tenant)).split("-")[1]
    async with browser(application, await session_of(role)) as client:
        for kind, paths in pages_of(tenant, prefix).items():
            may = reads if kind == "readers" else changes
            assert {path: (await client.get(path)).status_code for path in paths} == dict.fromkeys(
                paths, 200 if may else 403
            )
        live = await page_of(client, "/console/")
        assert (f'href="{TENANTS}"' in live) == reads
        if reads:
            page = await page_of(client, f"{TENANTS}{tenant.pk}/keys/")
            assert ("Make a key" in page, "Revoke" in page, "Edit tenant" in page) == (changes,) * 3
            quotas = await page_of(client, f"{TENANTS}{tenant.pk}/quotas/")
            assert ('name="tokens_per_day"' in quotas, "roll-back" in quotas) == (changes, False)
        if not reads:
            refused = await page_of(client, TENANTS, status=403)
            assert "Your account may not do this" in words(refused)


async def test_who_may_not_change_changes_nothing_though_they_post(application: Any, services: Services) -> None:
    """C86."""
    tenant = await make_tenant(services)
    prefix = (await make_key(services, tenant)).split("-")[1]
    base = f"{TENANTS}{tenant.pk}/"
    before = await AuditEvent.objects.acount()
    async with browser(application, await session_of("auditor")) as client:
        login = await page_of(client, "/console/")
        token = fields_or_token(login)
        for path in (
            NEW,
            f"{base}edit/",
            f"{base}quotas/",
            f"{base}quotas/0/roll-back",
            f"{base}keys/",
            f"{base}keys/{prefix}/",
            f"{base}keys/{prefix}/0/roll-back",
            f"{base}keys/{prefix}/revoke/",
        ):
            data = {"csrfmiddlewaretoken": token, "name": "mine", "based_on": "0", "scopes": "admin"}
            assert (await client.post(path, data=data)).status_code == 403, path
    assert (await AuditEvent.objects.acount(), await Tenant.objects.acount()) == (before, 1)


def fields_or_token(page: str) -> str:
    marker = 'name="csrfmiddlewaretoken" value="'
    return page[page.index(marker) + len(marker) :].split('"')[0]


async def test_a_form_without_its_token_does_nothing(admin: httpx.AsyncClient, services: Services) -> None:
    tenant = await make_tenant(services)
    assert (await admin.post(f"{TENANTS}{tenant.pk}/edit/", data={"name": "other"})).status_code == 403
    assert (await stored(tenant)).name == "acme"


@pytest.mark.parametrize("path", ["99/", "99/quotas/", "99/keys/", "99/usage/", "99/edit/", f"{10**30}/", "0/"])
async def test_unknown_tenants_are_not_found(admin: httpx.AsyncClient, pool: str, path: str) -> None:
    assert "There is no such page" in words(await page_of(admin, TENANTS + path, status=404))


# --- what it is ---


async def test_overview_tells_attributes_use_and_what_was_changed(admin: httpx.AsyncClient, services: Services) -> None:
    tenant = await make_tenant(
        services, "<b>acme</b>", weight=2.5, pools=["default"], quotas={"requests_per_minute": 10}, reason="<i>new</i>"
    )
    await make_key(services, tenant, label="nightly")
    page = await page_of(admin, f"{TENANTS}{tenant.pk}/")
    assert "<b>acme</b>" not in page
    assert "<i>new</i>" not in page
    text = words(page)
    for expected in (
        "<b>acme</b>",
        "Weight 2.5",
        "Pools default",
        "0 of 10 requests in the last 60 seconds (0%)",
        "0 tokens today; no bound",
        "Max prompt tokens no bound",
        "key made fp-",
        "label nightly",
        "requests_per_minute no bound → 10",
        "zoe",
        "<i>new</i>",
    ):
        assert expected in text


async def test_overview_tells_what_is_used_now_and_where_redis_is_away_what_is_known(
    admin: httpx.AsyncClient, services: Services
) -> None:
    tenant = await make_tenant(services, quotas={"tokens_per_minute": 100, "max_concurrent_requests": 4})
    subject = f"tenant:{tenant.pk}"
    now_ms = 1000 * int((await services.redis.time())[0])
    await services.redis.hset(
        quota_book(subject), mapping={"requests": 1, "tokens": 85, "open": 1, "one": "85:0:20000:24000"}
    )
    await services.redis.zadd(quota_charges(subject), {"one": now_ms})
    await services.redis.zadd(quota_leases(subject), {"one": now_ms + 60_000})
    page = await page_of(admin, f"{TENANTS}{tenant.pk}/")
    assert "85 of 100 tokens in the last 60 seconds (85%)" in words(page)
    assert "1 of 4 requests waiting or running (25%)" in words(page)
    assert 'data-level="near"' in page
    assert 'width="85%"' in page
    services.blocking_redis.connection_pool = unreachable()
    text = words(await page_of(admin, f"{TENANTS}{tenant.pk}/"))
    assert "at most 100 tokens; use unknown" in text
    assert "0 tokens today; no bound" in text


def unreachable() -> ConnectionPool:
    return ConnectionPool.from_url("redis://127.0.0.1:1")


# --- making one ---


async def test_a_tenant_is_made_with_its_quotas(admin: httpx.AsyncClient, services: Services) -> None:
    await in_thread(ensure_pool)("bulk", "a-model")
    response = await submit(
        admin,
        NEW,
        name="  acme ",
        weight="2.5",
        most_urgent="-3",
        pools="some",
        reason="signed today",
        tokens_per_minute="100,000",
        max_output_tokens="512",
        **{"rank.bulk": "1", "rank.default": "2"},
    )
    tenant = await Tenant.objects.aget(name="acme")
    assert (response.status_code, response.headers["Location"]) == (302, f"{TENANTS}{tenant.pk}/keys/")
    assert (tenant.weight, tenant.most_urgent, tenant.pools, tenant.enabled) == (2.5, -3, ["bulk", "default"], True)
    number, quotas = await in_thread(selectors.current_quotas)(tenant)
    assert (number, quotas.tokens_per_minute, quotas.max_output_tokens) == (1, 100_000, 512)
    assert {event.actor async for event in AuditEvent.objects.filter(tenant="acme")} == {"ann"}
    assert "The tenant is made" in words(await page_of(admin, response.headers["Location"]))


async def test_what_is_wrong_stands_beside_each_field_and_nothing_typed_is_lost(
    admin: httpx.AsyncClient, pool: str
) -> None:
    typed: dict[str, Any] = {
        "name": "",
        "weight": "heavy",
        "most_urgent": "101",
        "pools": "some",
        "tokens_per_minute": "1.5",
        "tokens_per_day": "0",
        "requests_per_minute": "12",
        "reason": "x" * 501,
        "enabled": None,
    }
    response = await submit(admin, NEW, **typed)
    assert response.status_code == 400
    errors = errors_of(response.text)
    assert set(errors) == {
        "name",
        "weight",
        "most_urgent",
        "pools",
        "tokens_per_minute",
        "tokens_per_day",
        "reason",
    }
    assert errors["weight"] == "weight must be a number from 0.01 to 1000, not 'heavy'."
    assert errors["pools"] == "pools must be one pool at least, or all of them, not []."
    assert "from 1 to" in errors["tokens_per_day"]
    assert "not 0" in errors["tokens_per_day"]
    again = fields_of(response.text)
    for name in ("weight", "most_urgent", "tokens_per_minute", "tokens_per_day", "requests_per_minute", "reason"):
        assert again[name] == typed[name]
    assert again["pools"] == ["some"]
    assert "enabled" not in again
    assert await Tenant.objects.acount() == 0


async def test_a_name_that_is_taken_is_said_so_beside_it(admin: httpx.AsyncClient, services: Services) -> None:
    await make_tenant(services)
    response = await submit(admin, NEW, name="acme")
    assert (response.status_code, "already" in errors_of(response.text)["name"]) == (400, True)


@pytest.mark.parametrize("text", ["a\0b", "\0", "é" * 101, SECRET])
@pytest.mark.parametrize("field", ["name", "weight", "most_urgent", "tokens_per_day", "reason"])
async def test_texts_that_cannot_be_stored_are_refused_and_keys_never_shown_again(
    admin: httpx.AsyncClient, pool: str, field: str, text: str
) -> None:
    """C84."""
    response = await submit(admin, NEW, **{"name": "acme", field: text * 5 if field == "reason" else text})
    assert (response.status_code, list(errors_of(response.text))) == (400, [field])
    assert "s" * 43 not in response.text


async def test_pools_that_are_none_are_named_with_those_that_exist(admin: httpx.AsyncClient, pool: str) -> None:
    response = await submit(admin, NEW, name="acme", pools="some", **{"rank.nowhere": "1"})
    assert (
        errors_of(response.text)["pools"]
        == "pools must be names of pools, of which there are: default, not ['nowhere']."
    )
    assert "not configured" in response.text
    for name in ("a\0b", SECRET, "x" * 500):
        refused = await submit(admin, NEW, name="acme", pools="some", **{f"rank.{name}": "1"})
        assert (refused.status_code, "s" * 43 in refused.text) == (400, False)


# --- changing one ---


async def test_a_change_is_stored_counts_at_once_and_says_who(admin: httpx.AsyncClient, services: Services) -> None:
    tenant = await make_tenant(services)
    epoch = await read_epoch(services.redis)
    path = f"{TENANTS}{tenant.pk}/edit/"
    response = await submit(admin, path, weight="3", enabled=None, reason="unpaid")
    assert (response.status_code, response.headers["Location"]) == (302, f"{TENANTS}{tenant.pk}/")
    assert ((await stored(tenant)).weight, (await stored(tenant)).enabled) == (3.0, False)
    assert await read_epoch(services.redis) != epoch
    event = await AuditEvent.objects.order_by("-pk").afirst()
    assert event is not None
    assert (event.actor, event.reason) == ("ann", "unpaid")
    assert event.changes == {"weight": [1.0, 3.0], "enabled": [True, False]}
    page = words(await page_of(admin, f"{TENANTS}{tenant.pk}/"))
    assert "The change is stored" in page
    assert "disabled" in page
    assert "Prompts and answers not kept" in page
    await submit(admin, path, keeps_text="on")
    assert (await stored(tenant)).keeps_text
    assert "kept in the log of requests" in words(await page_of(admin, f"{TENANTS}{tenant.pk}/"))
    unchanged = await submit(admin, path)
    assert "Nothing changed" in words(await page_of(admin, unchanged.headers["Location"]))


async def test_the_later_of_two_sees_what_the_earlier_did_and_loses_nothing(
    admin: httpx.AsyncClient, services: Services
) -> None:
    tenant = await make_tenant(services)
    path = f"{TENANTS}{tenant.pk}/edit/"
    form = fields_of(await page_of(admin, path)) | {"weight": "5", "reason": "for the launch"}
    await change(services, tenant, author="carla", reason="smaller", weight=0.5, most_urgent=-7)
    response = await admin.post(path, data=form)
    assert response.status_code == 409
    text = words(response.text)
    assert "weight is 0.5 by now, not 1.0" in text
    assert "carla" in text
    assert "“smaller”" in text
    assert (await stored(tenant)).weight == 0.5
    again = fields_of(response.text)
    assert (again["weight"], again["reason"], again["most_urgent"]) == ("5", "for the launch", "-7")
    assert (await admin.post(path, data=again)).status_code == 302
    assert ((await stored(tenant)).weight, (await stored(tenant)).most_urgent) == (5.0, -7)


async def test_two_who_change_different_attributes_do_not_meet(admin: httpx.AsyncClient, services: Services) -> None:
    tenant = await make_tenant(services)
    path = f"{TENANTS}{tenant.pk}/edit/"
    form = fields_of(await page_of(admin, path)) | {"weight": "5"}
    await change(services, tenant, name="acme & sons")
    assert (await admin.post(path, data=form)).status_code == 302
    assert ((await stored(tenant)).name, (await stored(tenant)).weight) == ("acme & sons", 5.0)


async def test_a_rule_that_outlived_its_pool_is_shown_and_does_not_hinder_other_changes(
    admin: httpx.AsyncClient, services: Services
) -> None:
    tenant = await make_tenant(services, pools=["gone-by-now", "default"])
    path = f"{TENANTS}{tenant.pk}/edit/"
    page = await page_of(admin, path)
    assert fields_of(page)["rank.gone-by-now"] == "1"
    assert (await submit(admin, path, weight="2")).status_code == 302
    assert (await stored(tenant)).pools == ["gone-by-now", "default"]
    assert (await submit(admin, path, **{"rank.gone-by-now": ""})).status_code == 302
    assert (await stored(tenant)).pools == ["default"]
    assert (await submit(admin, path, pools="all")).status_code == 302
    assert (await stored(tenant)).pools is None


@pytest.mark.parametrize("seen", [None, "", "{", "[]", "{}", "1", "[" * 30_000, '{"name": "x"}', "x" * 30_000, "\0"])
async def test_a_form_that_does_not_say_what_it_was_filled_from_is_refused(
    admin: httpx.AsyncClient, services: Services, seen: str | None
) -> None:
    tenant = await make_tenant(services)
    response = await submit(admin, f"{TENANTS}{tenant.pk}/edit/", seen=seen, weight="7")
    assert (response.status_code, "reload the page" in response.text) == (400, True)
    assert fields_of(response.text)["weight"] == "7"
    assert (await stored(tenant)).weight == 1.0
