"""The table of events, and in the database itself that none of them is changed or deleted.

A later migration that alters the table in SQLite loses the triggers, as Django then makes the table anew: it must make
them again (`make_append_only`).
"""

from __future__ import annotations

from typing import Any

import django.utils.timezone
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

MAKE = {
    "sqlite": (
        """
        CREATE TRIGGER audit_refuses_update BEFORE UPDATE ON audit_auditevent
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
        """,
        """
        CREATE TRIGGER audit_refuses_delete BEFORE DELETE ON audit_auditevent
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
        """,
        # INSERT OR REPLACE deletes without the trigger above.
        """
        CREATE TRIGGER audit_refuses_replace BEFORE INSERT ON audit_auditevent
        WHEN EXISTS (SELECT 1 FROM audit_auditevent WHERE id = NEW.id)
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
        """,
    ),
    "postgresql": (
        """
        CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'the audit is append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$
        """,
        """
        CREATE TRIGGER audit_refuses_changes BEFORE UPDATE OR DELETE ON audit_auditevent
        FOR EACH ROW EXECUTE FUNCTION audit_refuse()
        """,
        """
        CREATE TRIGGER audit_refuses_truncate BEFORE TRUNCATE ON audit_auditevent
        FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()
        """,
    ),
}
DROP = {
    "sqlite": (
        "DROP TRIGGER audit_refuses_update",
        "DROP TRIGGER audit_refuses_delete",
        "DROP TRIGGER audit_refuses_replace",
    ),
    "postgresql": (
        "DROP TRIGGER audit_refuses_changes ON audit_auditevent",
        "DROP TRIGGER audit_refuses_truncate ON audit_auditevent",
        "DROP FUNCTION audit_refuse()",
    ),
}


def make_append_only(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the triggers."""
    for statement in MAKE[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


def drop_append_only(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the triggers."""
    for statement in DROP[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AuditEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("actor", models.CharField(max_length=200)),
                ("actor_kind", models.CharField(max_length=10)),
                ("action", models.CharField(max_length=40)),
                ("subject_kind", models.CharField(max_length=20)),
                ("subject", models.CharField(blank=True, max_length=200)),
                ("pool", models.CharField(blank=True, max_length=100)),
                ("tenant", models.CharField(blank=True, max_length=100)),
                ("tenant_id_then", models.BigIntegerField(blank=True, null=True)),
                ("changes", models.JSONField(default=dict)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("request_id", models.CharField(blank=True, max_length=100)),
                ("address", models.CharField(blank=True, max_length=45)),
            ],
            options={
                "ordering": ("-at", "-pk"),
                "indexes": [
                    models.Index(fields=["-at", "-id"], name="acts_by_time"),
                    models.Index(fields=["tenant_id_then", "-at", "-id"], name="acts_on_tenant_by_time"),
                    models.Index(fields=["actor", "-at", "-id"], name="acts_of_actor_by_time"),
                ],
            },
        ),
        migrations.RunPython(make_append_only, drop_append_only),
    ]
