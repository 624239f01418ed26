"""API keys: made once, stored as digests, told by nobody."""

from __future__ import annotations

import datetime
import hmac
import io
import logging
import string
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from redis import Redis

from serving.admission.keys import SCOPES, KeyText, make_key, read_bearer
from serving.admission.models import ApiKey, Tenant
from serving.admission.principals import principal_if_it_opens, read_known_key
from serving.admission.services import add_key, create_key, revoke_key
from serving.admission.tenants import create_tenant
from serving.audit.selectors import events_of_tenant
from serving.contracts.errors import InvalidKey, InvalidValue, KeyNotFound, PermissionDenied, TenantNotFound
from tests.admission.opening import open_with

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis(valkey: str) -> Redis:
    return Redis.from_url(valkey)


def test_keys_differ_and_are_read_back_from_a_header() -> None:
    keys = {make_key().text for _ in range(1000)}
    assert len(keys) == 1000
    for text in keys:
        read = read_bearer(f"Bearer {text}")
        assert read is not None
        assert read.text == text
        assert text.startswith(f"fp-{read.prefix}-")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer fp-wrong",
        "Basic dXNlcjpwYXNz",
        "Bearer fp-0123456789ab-" + "x" * 42,
        "Bearer fp-0123456789ab-" + "x" * 44,
        "Bearer fp-0123456789AB-" + "x" * 43,
        "Bearer fp-0123456789ab-" + "ü" * 43,
        "Bearer " + "x" * 1_000_000,
    ],
)
def test_what_is_no_key_is_refused_before_the_database_is_asked(header: str | None) -> None:
    assert read_bearer(header) is None
    with pytest.raises(InvalidKey):
        open_with(header)


def test_key_opens_for_its_tenant_with_its_scopes() -> None:
    key = create_key("acme", label="first", scopes=["generate", "observe"])
    principal = open_with(f"bearer {key.text}")
    assert (principal.tenant, principal.key_prefix) == ("acme", key.prefix)
    assert principal.tenant_id == Tenant.objects.get(name="acme").pk
    assert principal.scopes == {"generate", "observe"}
    principal.require("operate", "observe")
    with pytest.raises(PermissionDenied, match="operate"):
        principal.require("operate")


def test_only_a_digest_is_stored() -> None:
    key = create_key("acme")
    row = ApiKey.objects.values().get(prefix=key.prefix)
    secret = key.text.split("-", 2)[2]
    assert all(secret not in str(value) for value in row.values())
    known = read_known_key(key.prefix, epoch=None)
    assert secret not in repr(key)
    assert row["digest"] not in repr(known)


def test_every_key_that_is_nearly_right_is_refused() -> None:
    """C85: no character may be wrong."""
    key = create_key("acme")
    known = read_known_key(key.prefix, epoch=None)
    assert principal_if_it_opens(key, known).tenant == "acme"
    alphabet = string.ascii_letters + string.digits + "-_"
    start = len(f"fp-{key.prefix}-")
    num_refused = 0
    for place in range(start, len(key.text)):
        for letter in set(alphabet) - {key.text[place]}:
            near = read_bearer(f"Bearer {key.text[:place]}{letter}{key.text[place + 1 :]}")
            assert near is not None
            with pytest.raises(InvalidKey):
                principal_if_it_opens(near, known)
            num_refused += 1
    assert num_refused == 43 * 63


def test_digests_are_compared_in_constant_time_whether_the_prefix_is_known_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C85: neither how much of a key is right nor whether its prefix exists can be told from the comparing."""
    compared: list[tuple[str, str]] = []
    really_compare = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return really_compare(one, other)

    monkeypatch.setattr("serving.admission.principals.hmac.compare_digest", compare)
    key = create_key("acme")
    wrong_secret = KeyText(key.prefix, f"fp-{key.prefix}-{make_key().text.split('-', 2)[2]}")
    for presented in (wrong_secret, make_key()):
        compared.clear()
        with pytest.raises(InvalidKey):
            open_with(f"Bearer {presented.text}")
        ((one, other),) = compared
        assert (one, len(other)) == (presented.digest, 64)


def test_ended_keys_are_refused_and_never_named(caplog: pytest.LogCaptureFixture, redis: Redis) -> None:
    """C84: an expired, a revoked, a foreign and an unknown key leave no trace of themselves."""
    caplog.set_level(logging.DEBUG)
    now = timezone.now()
    expired = create_key("acme", expires_at=now - datetime.timedelta(seconds=1))
    revoked = create_key("acme")
    ended = revoke_key(Tenant.objects.get(name="acme").pk, revoked.prefix, author="tests", redis=redis)
    again = revoke_key(ended.tenant_id, revoked.prefix, author="tests", redis=redis)
    assert again.revoked_at == ended.revoked_at is not None
    disabled = create_key("closed")
    Tenant.objects.filter(name="closed").update(enabled=False)
    for key in (expired, revoked, disabled, make_key()):
        with pytest.raises(InvalidKey) as caught:
            open_with(f"Bearer {key.text}")
        assert key.text not in str(caught.value)
        assert key.prefix not in str(caught.value)
        assert key.text not in caplog.text


def test_future_expiry_lets_in() -> None:
    key = create_key("acme", expires_at=timezone.now() + datetime.timedelta(hours=1))
    assert open_with(f"Bearer {key.text}").tenant == "acme"


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": []},
        {"scopes": ["everything"]},
        {"tenant": " "},
        {"tenant": "x" * 101},
        {"tenant": "a\0b"},
        {"label": "x" * 101},
        {"label": "a\0b"},
    ],
)
def test_senseless_keys_are_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        create_key(wrong.pop("tenant", "acme"), **wrong)
    assert not ApiKey.objects.exists()
    assert not Tenant.objects.exists()


def test_keys_that_could_never_open_are_not_added(redis: Redis) -> None:
    tenant = create_tenant("acme", author="tests", redis=redis)
    now = timezone.now()
    naive = (now + datetime.timedelta(days=1)).replace(tzinfo=None)
    for expires_at in (now, naive, now + datetime.timedelta(days=40000)):
        with pytest.raises(InvalidValue, match="expires_at"):
            add_key(tenant.pk, author="tests", redis=redis, scopes=["generate"], expires_at=expires_at)
    with pytest.raises(TenantNotFound):
        add_key(tenant.pk + 1, author="tests", redis=redis, scopes=["generate"])
    assert not ApiKey.objects.exists()


def test_a_key_is_revoked_under_its_own_tenant_alone(redis: Redis) -> None:
    mine, other = (create_tenant(name, author="tests", redis=redis) for name in ("mine", "other"))
    stored, key = add_key(mine.pk, author="tests", redis=redis, scopes=["generate"])
    for wrong in (stored.prefix[:-1], "a\0b", key.text, ""):
        with pytest.raises(KeyNotFound):
            revoke_key(mine.pk, wrong, author="tests", redis=redis)
    with pytest.raises(KeyNotFound):
        revoke_key(other.pk, stored.prefix, author="tests", redis=redis)
    assert open_with(f"Bearer {key.text}").tenant == "mine"


def test_command_prints_a_key_that_opens() -> None:
    output = io.StringIO()
    call_command("createkey", "acme", scopes="generate, operate", expires_days=1, stdout=output)
    principal = open_with(f"Bearer {output.getvalue().strip()}")
    assert principal.scopes == {"generate", "operate"}
    tenant_id = Tenant.objects.get(name="acme").pk
    made, tenant_made = events_of_tenant(tenant_id)
    assert (made.action, made.actor, made.actor_kind, made.subject) == (
        "key made",
        "command line",
        "command",
        principal.key_prefix,
    )
    assert made.changes["scopes"] == [None, ["generate", "operate"]]
    assert (tenant_made.action, tenant_made.actor, tenant_made.subject) == ("tenant made", "command line", "acme")
    call_command("createkey", "acme", stdout=io.StringIO())
    assert [event.action for event in events_of_tenant(tenant_id)] == ["key made"] * 2 + ["tenant made"]
    with pytest.raises(CommandError, match="scopes"):
        call_command("createkey", "acme", scopes="all")
    assert set(SCOPES) == {"generate", "batch", "observe", "operate", "admin"}
