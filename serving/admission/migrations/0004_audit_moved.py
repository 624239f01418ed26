"""What tenants' own audit has goes to the audit of everything."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_COMMAND_LINE = "command line"
_ROWS_AT_ONCE = 500


def move_entries(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Copy the entries in their order."""
    events = apps.get_model("audit", "AuditEvent").objects
    copied = []
    for entry in apps.get_model("admission", "AuditEntry").objects.select_related("tenant").order_by("pk").iterator():
        copied.append(
            events.model(
                at=entry.created_at,
                actor=entry.author,
                actor_kind=_kind_of(entry.author),
                action=entry.action,
                subject_kind="key" if entry.key_prefix else "tenant",
                subject=entry.key_prefix or entry.tenant.name,
                tenant=entry.tenant.name,
                tenant_id_then=entry.tenant_id,
                changes=entry.changes,
                reason=entry.reason,
            )
        )
        if len(copied) == _ROWS_AT_ONCE:
            events.bulk_create(copied)
            copied = []
    events.bulk_create(copied)


def _kind_of(author: str) -> str:
    # So the API wrote down who came with a key: "acme, key 0123456789ab".
    if author == _COMMAND_LINE:
        return "command"
    if author == "the console":
        return "system"
    return "key" if ", key " in author else "user"


class Migration(migrations.Migration):
    dependencies = [
        ("admission", "0003_tenant_pools"),
        ("audit", "0001_first"),
    ]

    operations = [
        migrations.RunPython(move_entries, migrations.RunPython.noop),
        migrations.DeleteModel(name="AuditEntry"),
    ]
