"""Two who change one tenant at once: neither undoes what the other did without having seen it."""

from __future__ import annotations

from typing import Any

import pytest

from serving.admission.models import Tenant
from serving.admission.tenants import change_tenant, check_attribute
from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue, StaleVersion, UnknownField

pytestmark = pytest.mark.django_db


class Redis:
    """Takes the word of a change, and tells nobody."""

    def set(self, *_: Any) -> None: ...


@pytest.fixture
def tenant() -> Tenant:
    return Tenant.objects.create(name="acme", weight=2.0)


def change(tenant: Tenant, changes: dict[str, Any], **options: Any) -> Tenant:
    redis: Any = Redis()
    return change_tenant(tenant.pk, changes, author="ann", redis=redis, **options)


def test_what_another_changed_meanwhile_is_not_overwritten_unseen(tenant: Tenant) -> None:
    change(tenant, {"weight": 3.0})
    with pytest.raises(StaleVersion, match=r"weight is 3\.0 by now, not 2\.0") as caught:
        change(tenant, {"weight": 4.0, "enabled": False}, seen={"weight": 2.0, "enabled": True})
    assert caught.value.param == "weight"
    tenant.refresh_from_db()
    assert (tenant.weight, tenant.enabled, AuditEvent.objects.count()) == (3.0, True, 1)


def test_changes_of_different_attributes_do_not_meet(tenant: Tenant) -> None:
    change(tenant, {"weight": 3.0})
    seen = {"name": "acme", "weight": 2.0, "enabled": True}
    changed = change(tenant, {"enabled": False}, seen=seen)
    assert (changed.weight, changed.enabled) == (3.0, False)


def test_the_same_change_twice_is_no_conflict(tenant: Tenant) -> None:
    change(tenant, {"weight": 3.0})
    assert change(tenant, {"weight": 3.0}, seen={"weight": 2.0}).weight == 3.0


def test_an_attribute_can_be_checked_alone() -> None:
    check_attribute("weight", 2)
    with pytest.raises(InvalidValue, match=r"weight must be a number from 0\.01 to 1000, not 'much'"):
        check_attribute("weight", "much")
    with pytest.raises(UnknownField):
        check_attribute("colour", "red")
