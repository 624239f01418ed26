"""A tenant's keys in the console: made, shown once, and revoked."""

from __future__ import annotations

import datetime
import logging
import re

import httpx
import pytest
from django.utils import timezone

from dashboard.models import ConsoleSession
from serving.admission import selectors
from serving.admission.models import ApiKey, Tenant
from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidKey
from tests.admission.opening import open_with
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import (
    TENANTS,
    errors_of,
    fields_of,
    in_thread,
    make_key,
    make_tenant,
    page_of,
    submit,
    words,
)

KEY = re.compile(r"fp-[0-9a-f]{12}-[A-Za-z0-9_-]{43}")


@pytest.fixture
async def tenant(services: Services, pool: str) -> Tenant:
    return await make_tenant(services)


def keys_of(tenant: Tenant) -> str:
    return f"{TENANTS}{tenant.pk}/keys/"


async def test_a_key_is_shown_once_and_opens(
    admin: httpx.AsyncClient, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    """C84."""
    caplog.set_level(logging.DEBUG)
    response = await submit(
        admin,
        keys_of(tenant),
        label="nightly",
        scopes=["generate", "batch"],
        expires_at="2099-01-31T12:30",
        requests_per_minute="5",
        reason="reports",
    )
    assert response.status_code == 200
    (text,) = set(KEY.findall(response.text))
    assert response.headers["Cache-Control"] == "no-store"
    principal = await in_thread(open_with)(f"Bearer {text}")
    assert (principal.tenant, principal.scopes) == ("acme", {"generate", "batch"})
    key = await ApiKey.objects.aget()
    assert (key.label, key.expires_at) == ("nightly", datetime.datetime(2099, 1, 31, 12, 30, tzinfo=datetime.UTC))
    assert (await in_thread(selectors.current_quotas)(key))[1].requests_per_minute == 5
    event = await AuditEvent.objects.filter(action="key made").aget()
    assert (event.actor, event.reason) == ("ann", "reports")
    for path in (
        keys_of(tenant),
        f"{keys_of(tenant)}{key.prefix}/",
        f"{TENANTS}{tenant.pk}/",
        f"{TENANTS}{tenant.pk}/usage/",
    ):
        page = await page_of(admin, path)
        assert text not in page
    assert "Requests per minute: 5" in words(await page_of(admin, keys_of(tenant)))
    secret = text.split("-", 2)[2]
    assert secret not in caplog.text
    assert secret not in str(response.url) + str(response.headers)
    assert [secret in str(session.get_decoded()) async for session in ConsoleSession.objects.all()] == [False]


async def test_a_key_needs_a_scope_and_a_moment_to_come(admin: httpx.AsyncClient, tenant: Tenant) -> None:
    path = keys_of(tenant)
    for field, value in (
        ("scopes", []),
        ("scopes", ["generate", "everything"]),
        ("expires_at", "2001-01-01T00:00"),
        ("expires_at", "9999-12-31T23:59"),
        ("expires_at", "soon"),
        ("expires_at", "\0"),
        ("label", "x" * 101),
        ("label", "a\0b"),
        ("requests_per_minute", "0"),
        ("reason", "x" * 501),
    ):
        response = await submit(admin, path, **{"label": "mine", "tokens_per_day": "77", field: value})
        assert response.status_code == 400, field
        errors = errors_of(response.text)
        assert list(errors) == [field]
        assert f"{field} must be" in errors[field]
        again = fields_of(response.text)
        assert again["tokens_per_day"] == "77"
        assert again["label"] == (value if field == "label" else "mine")
    assert await ApiKey.objects.acount() == 0


async def test_a_key_that_somebody_pasted_is_not_repeated(
    admin: httpx.AsyncClient, tenant: Tenant, services: Services
) -> None:
    """C84."""
    text = await make_key(services, tenant)
    secret = text.split("-", 2)[2]
    for field in ("label", "reason", "expires_at", "tokens_per_day", "scopes"):
        response = await submit(admin, keys_of(tenant), **{field: text})
        assert (response.status_code, secret in response.text) == (400, False), field
    prefix = text.split("-")[1]
    response = await submit(admin, f"{keys_of(tenant)}{prefix}/revoke/", reason=text)
    assert (response.status_code, secret in response.text) == (400, False)
    missing = await admin.get(f"{keys_of(tenant)}{text}/")
    assert (missing.status_code, secret in missing.text) == (404, False)


async def test_keys_tell_what_they_are_for_and_how_they_stand(
    admin: httpx.AsyncClient, tenant: Tenant, services: Services
) -> None:
    for label in ("valid", "expired", "revoked"):
        await make_key(services, tenant, label=label)
    now = timezone.now()
    await ApiKey.objects.filter(label="expired").aupdate(expires_at=now, last_used_at=now)
    await ApiKey.objects.filter(label="revoked").aupdate(revoked_at=now)
    page = await page_of(admin, keys_of(tenant))
    rows = [words(row) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)[1:]]
    assert [row.split(" … ")[0].split()[1] for row in rows] == ["valid", "revoked", "expired"]
    assert [("Revoke…" in row) for row in rows] == [True, False, True]
    assert f"{now:%Y-%m-%d %H:%M}" in rows[2]


async def test_revoking_asks_first_and_ends_the_key_at_once(
    admin: httpx.AsyncClient, tenant: Tenant, services: Services
) -> None:
    text = await make_key(services, tenant, label="laptop")
    path = f"{keys_of(tenant)}{text.split('-')[1]}/revoke/"
    page = words(await page_of(admin, path))
    assert "(laptop)?" in page
    assert "It was never used" in page
    await in_thread(open_with)(f"Bearer {text}")
    response = await submit(admin, path, reason="lost")
    assert (response.status_code, response.headers["Location"]) == (302, keys_of(tenant))
    with pytest.raises(InvalidKey):
        await in_thread(open_with)(f"Bearer {text}")
    event = await AuditEvent.objects.filter(action="key revoked").aget()
    assert (event.actor, event.reason) == ("ann", "lost")
    assert "is revoked" in words(await page_of(admin, keys_of(tenant)))
    # Twice is as good as once, and the later of two is told that there was an earlier.
    assert (await submit(admin, path, reason="stolen")).status_code == 302
    assert "was revoked before, at" in words(await page_of(admin, keys_of(tenant)))
    assert await AuditEvent.objects.filter(action="key revoked").acount() == 1


@pytest.mark.parametrize("prefix", ["f" * 12, "x", "%00", "é", "A" * 300])
async def test_unknown_keys_are_not_found(admin: httpx.AsyncClient, tenant: Tenant, prefix: str) -> None:
    for path in ("", "revoke/"):
        assert (await admin.get(f"{keys_of(tenant)}{prefix}/{path}")).status_code == 404


async def test_another_tenants_key_is_not_found(admin: httpx.AsyncClient, tenant: Tenant, services: Services) -> None:
    other = await make_tenant(services, "other")
    prefix = (await make_key(services, other)).split("-")[1]
    for path in (f"{prefix}/", f"{prefix}/revoke/"):
        assert (await admin.get(keys_of(tenant) + path)).status_code == 404
    form = fields_of(await page_of(admin, keys_of(tenant)))
    assert (await admin.post(f"{keys_of(tenant)}{prefix}/revoke/", data=form)).status_code == 404
    assert await ApiKey.objects.filter(revoked_at=None).acount() == 1
