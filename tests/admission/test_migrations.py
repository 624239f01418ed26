"""What an upgrade makes of tenants who are there already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from serving.audit.selectors import events_of_tenant

pytestmark = pytest.mark.django_db(transaction=True)


def migrate(target: str | None) -> Any:
    """Bring the tables of tenants to a migration, or to the newest; gives the models as they were then."""
    executor = MigrationExecutor(connection)
    newest = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "admission"]
    targets = newest if target is None else [("admission", target)]
    executor.migrate(targets)
    return MigrationExecutor(connection).loader.project_state(targets).apps


@pytest.fixture
def first_release() -> Iterator[Any]:
    """The models of the first release, over tables of the first release."""
    yield migrate("0001_first")
    migrate(None)


def test_tenants_of_the_first_release_keep_their_keys_and_may_send_every_priority(first_release: Any) -> None:
    tenant = first_release.get_model("admission", "Tenant").objects.create(name="acme")
    first_release.get_model("admission", "ApiKey").objects.create(
        tenant=tenant, prefix="0" * 12, digest="0" * 64, scopes=["generate"]
    )
    now = migrate(None)
    key = now.get_model("admission", "ApiKey").objects.select_related("tenant").get()
    assert (key.tenant.name, key.tenant.most_urgent, key.tenant.weight, key.last_used_at) == ("acme", -100, 1.0, None)
    assert key.tenant.pools is None
    assert now.get_model("admission", "Tenant").objects.create(name="new").most_urgent == 0


@pytest.fixture
def own_audit() -> Iterator[Any]:
    """The models of the release whose tenants had an audit of their own, over its tables."""
    yield migrate("0003_tenant_pools")
    migrate(None)


def test_what_tenants_own_audit_has_goes_to_the_audit_of_everything(own_audit: Any) -> None:
    tenant = own_audit.get_model("admission", "Tenant").objects.create(name="acme")
    entries = own_audit.get_model("admission", "AuditEntry").objects
    entries.create(tenant=tenant, action="tenant made", author="command line", changes={"name": [None, "acme"]})
    made_at = entries.create(
        tenant=tenant, action="key made", key_prefix="0" * 12, author="acme, key 1234567890ab", reason="a test"
    ).created_at
    entries.create(tenant=tenant, action="tenant changed", author="ann", changes={"weight": [1.0, 2.0]})
    migrate(None)
    changed, key, made = events_of_tenant(tenant.pk)
    assert (made.actor, made.actor_kind, made.subject, made.changes) == (
        "command line",
        "command",
        "acme",
        {"name": [None, "acme"]},
    )
    assert (key.actor_kind, key.subject_kind, key.subject, key.reason) == ("key", "key", "0" * 12, "a test")
    assert (key.at, key.tenant) == (made_at, "acme")
    assert (changed.actor, changed.actor_kind, changed.changes) == ("ann", "user", {"weight": [1.0, 2.0]})
