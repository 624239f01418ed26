"""API keys: made once, stored as digests, told by nobody."""

from __future__ import annotations

import datetime
import io
import logging
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from serving.admission.keys import SCOPES, make_key, read_bearer
from serving.admission.models import ApiKey, Tenant
from serving.admission.services import authenticate, create_key, find_principal, revoke_key
from serving.contracts.errors import InvalidKey, InvalidValue, PermissionDenied

pytestmark = pytest.mark.django_db(transaction=True)


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
        find_principal(header)


def test_key_opens_for_its_tenant_with_its_scopes() -> None:
    key = create_key("acme", label="first", scopes=["generate", "observe"])
    principal = find_principal(f"Bearer {key.text}")
    assert (principal.tenant, principal.key_prefix) == ("acme", key.prefix)
    assert principal.scopes == {"generate", "observe"}
    principal.require("operate", "observe")
    with pytest.raises(PermissionDenied, match="operate"):
        principal.require("operate")


async def test_authenticates_from_async_code() -> None:
    from asgiref.sync import sync_to_async

    key = await sync_to_async(create_key)("acme")
    assert (await authenticate(f"bearer {key.text}")).tenant == "acme"


def test_only_a_digest_is_stored() -> None:
    key = create_key("acme")
    row = ApiKey.objects.values().get(prefix=key.prefix)
    secret = key.text.split("-", 2)[2]
    assert all(secret not in str(value) for value in row.values())
    assert secret not in repr(key)


def test_wrong_secret_under_a_known_prefix_is_refused() -> None:
    key = create_key("acme")
    other = make_key()
    forged = f"fp-{key.prefix}-{other.text.split('-', 2)[2]}"
    with pytest.raises(InvalidKey):
        find_principal(f"Bearer {forged}")


def test_ended_keys_are_refused_and_never_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    now = timezone.now()
    expired = create_key("acme", expires_at=now - datetime.timedelta(seconds=1))
    revoked = create_key("acme")
    assert revoke_key(revoked.prefix)
    assert not revoke_key(revoked.prefix)
    disabled = create_key("closed")
    Tenant.objects.filter(name="closed").update(enabled=False)
    for key in (expired, revoked, disabled, make_key()):
        with pytest.raises(InvalidKey) as caught:
            find_principal(f"Bearer {key.text}")
        assert key.text not in str(caught.value)
        assert key.prefix not in str(caught.value)
        assert key.text not in caplog.text


def test_future_expiry_lets_in() -> None:
    key = create_key("acme", expires_at=timezone.now() + datetime.timedelta(hours=1))
    assert find_principal(f"Bearer {key.text}").tenant == "acme"


@pytest.mark.parametrize("wrong", [{"scopes": []}, {"scopes": ["everything"]}, {"tenant": " "}, {"tenant": "x" * 101}])
def test_senseless_keys_are_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        create_key(wrong.pop("tenant", "acme"), **wrong)
    assert not ApiKey.objects.exists()


def test_command_prints_a_key_that_opens() -> None:
    output = io.StringIO()
    call_command("createkey", "acme", scopes="generate, operate", expires_days=1, stdout=output)
    principal = find_principal(f"Bearer {output.getvalue().strip()}")
    assert principal.scopes == {"generate", "operate"}
    with pytest.raises(CommandError, match="scopes"):
        call_command("createkey", "acme", scopes="all")
    assert set(SCOPES) == {"generate", "batch", "observe", "operate", "admin"}
