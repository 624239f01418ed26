"""Tenants and quotas: what is stored, by whom, and that every change begins a new epoch."""

from __future__ import annotations

import concurrent.futures
import itertools
import math
from typing import Any

import pytest
from django.db import connections, transaction
from redis import Redis

from serving.admission import selectors
from serving.admission.models import Tenant
from serving.admission.quotas import change_quotas, roll_back_quotas
from serving.admission.services import add_key, revoke_key
from serving.admission.tenants import change_tenant, create_tenant, ensure_tenant
from serving.audit.selectors import events_of_tenant
from serving.contracts import keys
from serving.contracts.errors import (
    InvalidValue,
    KeyNotFound,
    NameTaken,
    NothingChanges,
    StaleVersion,
    TenantNotFound,
    UnknownField,
)
from serving.contracts.quotas import Quotas
from tests.admission.opening import open_with

pytestmark = pytest.mark.django_db(transaction=True)
UNREACHABLE = Redis.from_url("unix:///nonexistent/valkey.sock")
WHO = {"author": "tests"}


@pytest.fixture
def redis(valkey: str) -> Redis:
    return Redis.from_url(valkey)


@pytest.fixture
def tenant(redis: Redis) -> Tenant:
    return create_tenant("acme", **WHO, redis=redis)


def epoch(redis: Redis) -> Any:
    return redis.get(keys.admission_epoch())


def test_a_tenant_is_made_with_what_was_asked_for(redis: Redis) -> None:
    made = create_tenant(
        "acme", **WHO, redis=redis, weight=2, most_urgent=-5, enabled=False, quotas={"requests_per_minute": 3}
    )
    stored = selectors.find_tenant(made.pk)
    assert (stored.name, stored.weight, stored.most_urgent, stored.enabled) == ("acme", 2.0, -5, False)
    assert selectors.current_quotas(stored) == (1, Quotas(requests_per_minute=3))
    plain = create_tenant("plain", **WHO, redis=redis, quotas={"tokens_per_day": None})
    assert (plain.weight, plain.most_urgent, plain.enabled) == (1.0, 0, True)
    assert selectors.current_quotas(plain) == (0, Quotas())
    assert selectors.current_quotas_by_owner([made, plain]) == {
        made.pk: (1, Quotas(requests_per_minute=3)),
        plain.pk: (0, Quotas()),
    }
    assert [tenant.name for tenant in selectors.tenants()] == ["acme", "plain"]
    assert [tenant.name for tenant in selectors.tenants(after=made.pk, limit=5)] == ["plain"]
    assert selectors.tenants(after=10**30) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": ""}, ["name", "1 to 100"]),
        ({"name": " "}, ["name"]),
        ({"name": "x" * 101}, ["name", "100"]),
        ({"name": "a\0b"}, ["name", "NUL"]),
        ({"weight": 0}, ["weight", "0.01"]),
        ({"weight": 1000.5}, ["weight", "1000"]),
        ({"weight": 10**400}, ["weight"]),
        ({"weight": math.nan}, ["weight", "nan"]),
        ({"weight": True}, ["weight"]),
        ({"most_urgent": -101}, ["most_urgent", "-100"]),
        ({"most_urgent": 0.5}, ["most_urgent"]),
        ({"enabled": 1}, ["enabled"]),
        ({"quotas": {"requests_per_minute": 0}}, ["requests_per_minute", "0"]),
        ({"quotas": {"tokens_per_day": 10**400}}, ["tokens_per_day"]),
        ({"quotas": {"tokens_per_day": True}}, ["tokens_per_day"]),
        ({"reason": "a\0b"}, ["reason", "NUL"]),
        ({"reason": "x" * 501}, ["reason", "500"]),
    ],
)
def test_senseless_tenants_are_neither_made_nor_left_behind(
    redis: Redis, wrong: dict[str, Any], words: list[str]
) -> None:
    other = create_tenant("other", **WHO, redis=redis)
    for attempt in (
        lambda: create_tenant(**{"name": "acme", **wrong}, **WHO, redis=redis),
        lambda: change_tenant(
            other.pk,
            {name: value for name, value in wrong.items() if name not in ("quotas", "reason")},
            **WHO,
            redis=redis,
            quotas=wrong.get("quotas"),
            reason=wrong.get("reason", ""),
        ),
    ):
        with pytest.raises(InvalidValue) as caught:
            attempt()
        assert all(word in caught.value.message for word in words)
    assert Tenant.objects.values_list("name", "weight", "most_urgent").get() == ("other", 1.0, 0)


def test_unknown_attributes_and_quotas_are_named(tenant: Tenant, redis: Redis) -> None:
    with pytest.raises(UnknownField, match="colour"):
        change_tenant(tenant.pk, {"colour": "red"}, **WHO, redis=redis)
    with pytest.raises(UnknownField, match="tokens_per_day"):
        change_quotas(tenant.pk, {"tokens_per_dya": 1}, **WHO, redis=redis)


@pytest.mark.parametrize("wrong", [0, -1, 10**9, 2**63, 10**400])
def test_a_tenant_that_is_not_there_is_not_found(tenant: Tenant, redis: Redis, wrong: int) -> None:
    with pytest.raises(TenantNotFound):
        selectors.find_tenant(wrong)
    with pytest.raises(TenantNotFound):
        change_tenant(wrong, {"weight": 2}, **WHO, redis=redis)
    with pytest.raises(TenantNotFound):
        change_quotas(wrong, {"tokens_per_day": 1}, **WHO, redis=redis)


def test_a_name_is_given_once(tenant: Tenant, redis: Redis) -> None:
    other = create_tenant("other", **WHO, redis=redis)
    with pytest.raises(NameTaken, match="acme"):
        create_tenant("acme", **WHO, redis=redis)
    with pytest.raises(NameTaken, match="acme"):
        change_tenant(other.pk, {"name": "acme"}, **WHO, redis=redis, quotas={"tokens_per_day": 1})
    assert selectors.current_quotas(other) == (0, Quotas())
    assert ensure_tenant("acme", most_urgent=-100).most_urgent == 0


def test_quotas_change_in_versions_with_who_when_why_and_the_difference(tenant: Tenant, redis: Redis) -> None:
    first = change_quotas(tenant.pk, {"tokens_per_day": 100}, **WHO, redis=redis, reason="a test", based_on=0)
    second = change_quotas(tenant.pk, {"requests_per_minute": 5, "tokens_per_day": None}, **WHO, redis=redis)
    assert (first.number, first.changes, first.reason, first.author) == (
        1,
        {"tokens_per_day": [None, 100]},
        "a test",
        "tests",
    )
    assert (second.number, second.changes) == (
        2,
        {"requests_per_minute": [None, 5], "tokens_per_day": [100, None]},
    )
    assert selectors.current_quotas(tenant) == (2, Quotas(requests_per_minute=5))
    assert [version.number for version in selectors.quota_versions(tenant)] == [2, 1]
    assert [version.number for version in selectors.quota_versions(tenant, before=2)] == [1]
    with pytest.raises(NothingChanges, match="version 2"):
        change_quotas(tenant.pk, {"requests_per_minute": 5}, **WHO, redis=redis)
    with pytest.raises(StaleVersion, match="version 2"):
        change_quotas(tenant.pk, {"requests_per_minute": 6}, **WHO, redis=redis, based_on=1)


def test_roll_back_is_a_new_version_equal_to_an_old_one(tenant: Tenant, redis: Redis) -> None:
    change_quotas(tenant.pk, {"tokens_per_day": 100}, **WHO, redis=redis)
    change_quotas(tenant.pk, {"tokens_per_day": 50}, **WHO, redis=redis)
    back = roll_back_quotas(tenant.pk, 1, **WHO, redis=redis)
    assert (back.number, back.changes, back.reason) == (3, {"tokens_per_day": [50, 100]}, "roll back to version 1")
    unbounded = roll_back_quotas(tenant.pk, 0, **WHO, redis=redis, based_on=3)
    assert selectors.current_quotas(tenant) == (4, Quotas())
    assert unbounded.changes == {"tokens_per_day": [100, None]}
    for wrong, error in ((9, InvalidValue), (-1, InvalidValue), (2**40, InvalidValue), (4, NothingChanges)):
        with pytest.raises(error, match="version"):
            roll_back_quotas(tenant.pk, wrong, **WHO, redis=redis)
    with pytest.raises(StaleVersion):
        roll_back_quotas(tenant.pk, 1, **WHO, redis=redis, based_on=3)


def test_a_keys_quotas_are_its_own(tenant: Tenant, redis: Redis) -> None:
    stored, key = add_key(tenant.pk, **WHO, redis=redis, scopes=["generate"], quotas={"tokens_per_day": 10})
    other, _ = add_key(tenant.pk, **WHO, redis=redis, scopes=["generate"])
    change_quotas(tenant.pk, {"tokens_per_day": 20}, **WHO, redis=redis)
    change_quotas(tenant.pk, {"tokens_per_day": 5}, **WHO, redis=redis, key_prefix=stored.prefix)
    assert selectors.current_quotas(tenant) == (1, Quotas(tokens_per_day=20))
    assert selectors.current_quotas_by_owner([stored, other]) == {
        stored.pk: (2, Quotas(tokens_per_day=5)),
        other.pk: (0, Quotas()),
    }
    charges = open_with(f"Bearer {key.text}").account.charges
    assert [(charge.subject, charge.quotas.tokens_per_day, charge.version) for charge in charges] == [
        (f"tenant:{tenant.pk}", 20, 1),
        (f"key:{stored.prefix}", 5, 2),
    ]
    roll_back_quotas(tenant.pk, 0, **WHO, redis=redis, key_prefix=stored.prefix)
    (charge,) = open_with(f"Bearer {key.text}").account.charges
    assert charge.subject == f"tenant:{tenant.pk}"
    with pytest.raises(KeyNotFound):
        change_quotas(tenant.pk, {"tokens_per_day": 5}, **WHO, redis=redis, key_prefix="0" * 12)


def test_account_bears_weight_and_limit_of_priority(tenant: Tenant, redis: Redis) -> None:
    _, key = add_key(tenant.pk, **WHO, redis=redis, scopes=["generate"])
    change_tenant(tenant.pk, {"weight": 2.5, "most_urgent": -7}, **WHO, redis=redis)
    account = open_with(f"Bearer {key.text}", epoch="now").account
    assert (account.weight, account.most_urgent, account.epoch) == (2.5, -7, "now")


def test_stored_quotas_outlive_the_definition(tenant: Tenant, redis: Redis) -> None:
    version = change_quotas(tenant.pk, {"tokens_per_day": 100}, **WHO, redis=redis)
    version.values = {"a_quota_that_is_gone": 1, "tokens_per_day": 7}
    version.save()
    assert selectors.current_quotas(tenant) == (1, Quotas(tokens_per_day=7))


def test_every_change_begins_a_new_epoch_once_it_is_stored(tenant: Tenant, redis: Redis) -> None:
    seen = [epoch(redis)]
    stored, _ = add_key(tenant.pk, **WHO, redis=redis, scopes=["generate"])
    for change in (
        lambda: change_tenant(tenant.pk, {"enabled": False}, **WHO, redis=redis),
        lambda: change_quotas(tenant.pk, {"tokens_per_day": 1}, **WHO, redis=redis),
        lambda: change_quotas(tenant.pk, {"tokens_per_day": 1}, **WHO, redis=redis, key_prefix=stored.prefix),
        lambda: roll_back_quotas(tenant.pk, 0, **WHO, redis=redis),
        lambda: revoke_key(tenant.pk, stored.prefix, **WHO, redis=redis),
        lambda: create_tenant("other", **WHO, redis=redis),
    ):
        change()
        seen.append(epoch(redis))
    assert None not in seen
    assert len(set(seen)) == len(seen)
    with pytest.raises(RuntimeError, match="too late"), transaction.atomic():  # noqa: PT012
        change_tenant(tenant.pk, {"enabled": True}, **WHO, redis=redis)
        assert epoch(redis) == seen[-1]
        raise RuntimeError("too late")
    assert epoch(redis) == seen[-1]


def test_changes_are_kept_while_redis_is_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    tenant = create_tenant("acme", **WHO, redis=UNREACHABLE)
    change_tenant(tenant.pk, {"enabled": False}, **WHO, redis=UNREACHABLE, quotas={"tokens_per_day": 1})
    assert not selectors.find_tenant(tenant.pk).enabled
    assert selectors.current_quotas(tenant) == (1, Quotas(tokens_per_day=1))
    assert "Redis could not be told" in caplog.text


def test_audit_says_who_did_what_and_why(tenant: Tenant, redis: Redis) -> None:
    stored, key = add_key(tenant.pk, author="ann", redis=redis, scopes=["generate"], label="first", reason="for tests")
    change_tenant(tenant.pk, {"weight": 2}, author="ben", redis=redis, quotas={"tokens_per_day": 1}, reason="louder")
    revoke_key(tenant.pk, stored.prefix, author="ann", redis=redis, reason="lost")
    change_tenant(tenant.pk, {"weight": 2}, author="ben", redis=redis)
    events = events_of_tenant(tenant.pk)
    assert [(event.action, event.subject, event.actor, event.reason) for event in events] == [
        ("key revoked", stored.prefix, "ann", "lost"),
        ("quotas changed", "acme", "ben", "louder"),
        ("tenant changed", "acme", "ben", "louder"),
        ("key made", stored.prefix, "ann", "for tests"),
        ("tenant made", "acme", "tests", ""),
    ]
    assert events[2].changes == {"weight": [1.0, 2.0]}
    secret = key.text.split("-", 2)[2]
    assert all(secret not in str(vars(event)) for event in events)


def test_many_at_once_make_versions_one_after_another(tenant: Tenant, redis: Redis) -> None:
    """C103: reading and then writing in one transaction neither fails nor loses a change."""

    def change_and_close(value: int) -> int:
        try:
            return change_quotas(tenant.pk, {"tokens_per_day": value}, **WHO, redis=redis).number
        finally:
            connections.close_all()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(change_and_close, range(1, 41)))
    assert sorted(numbers) == list(range(1, 41))
    history = selectors.quota_versions(tenant)
    for newer, older in itertools.pairwise(history):
        assert newer.changes["tokens_per_day"][0] == older.values["tokens_per_day"]
