"""The pools that a tenant may use: what is stored, told to the door, and written down."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from serving.admission import selectors
from serving.admission.models import Tenant
from serving.admission.services import add_key, create_key
from serving.admission.tenants import MOST_POOLS, change_tenant, create_tenant
from serving.audit.selectors import events_of_tenant
from serving.contracts import keys
from serving.contracts.errors import InvalidValue
from tests.admission.opening import open_with

pytestmark = pytest.mark.django_db(transaction=True)
WHO = {"author": "tests"}


@pytest.fixture
def redis(valkey: str) -> Redis:
    return Redis.from_url(valkey)


@pytest.fixture
def tenant(redis: Redis) -> Tenant:
    return create_tenant("acme", **WHO, redis=redis)


def pools_at_the_door(tenant: Tenant, redis: Redis) -> tuple[str, ...] | None:
    _, key = add_key(tenant.pk, **WHO, redis=redis, scopes=["generate"])
    return open_with(f"Bearer {key.text}").account.pools


def test_a_tenant_may_use_every_pool_unless_some_are_named(tenant: Tenant, redis: Redis) -> None:
    assert selectors.find_tenant(tenant.pk).pools is None
    assert pools_at_the_door(tenant, redis) is None
    assert open_with(f"Bearer {create_key('by command').text}").account.pools is None
    assert [event.changes for event in events_of_tenant(tenant.pk)][-1] == {"name": [None, "acme"]}


def test_accounts_bear_the_pools_in_the_order_that_they_were_given_in(redis: Redis) -> None:
    made = create_tenant("other", **WHO, redis=redis, pools=["chat", "bulk"])
    assert selectors.find_tenant(made.pk).pools == ["chat", "bulk"]
    assert pools_at_the_door(made, redis) == ("chat", "bulk")
    change_tenant(made.pk, {"pools": ["bulk", "chat"]}, **WHO, redis=redis)
    assert pools_at_the_door(made, redis) == ("bulk", "chat")
    change_tenant(made.pk, {"pools": None}, **WHO, redis=redis)
    assert pools_at_the_door(made, redis) is None


def test_a_change_is_written_down_and_begins_a_new_epoch(tenant: Tenant, redis: Redis) -> None:
    seen = [redis.get(keys.admission_epoch())]
    for pools in (["chat"], ["chat", "bulk"], None):
        change_tenant(tenant.pk, {"pools": pools}, **WHO, redis=redis, reason="a test")
        seen.append(redis.get(keys.admission_epoch()))
    assert len(set(seen)) == len(seen)
    changes = [event.changes for event in events_of_tenant(tenant.pk)]
    assert changes[:3] == [
        {"pools": [["chat", "bulk"], None]},
        {"pools": [["chat"], ["chat", "bulk"]]},
        {"pools": [None, ["chat"]]},
    ]
    change_tenant(tenant.pk, {"pools": None}, **WHO, redis=redis)
    assert len(events_of_tenant(tenant.pk)) == len(changes)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["chat", "chat"],
        [f"pool-{number}" for number in range(MOST_POOLS + 1)],
        "chat",
        ("chat",),
        {"chat": 1},
        [1],
        [None],
        [["chat"]],
        ["a b"],
        ["a\0b"],
        ["x" * 65],
        0,
        False,
    ],
)
def test_what_is_no_list_of_names_is_neither_stored_nor_left_behind(tenant: Tenant, redis: Redis, wrong: Any) -> None:
    with pytest.raises(InvalidValue, match=f"pools must be a list of 1 to {MOST_POOLS} names of pools") as caught:
        change_tenant(tenant.pk, {"pools": wrong, "weight": 7}, **WHO, redis=redis)
    assert caught.value.param == "pools"
    with pytest.raises(InvalidValue):
        create_tenant("other", **WHO, redis=redis, pools=wrong)
    assert Tenant.objects.values_list("name", "weight", "pools").get() == ("acme", 1.0, None)
