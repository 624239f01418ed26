"""How the tests' database becomes empty again after a test that may have committed."""

from __future__ import annotations

from django.db import connections, transaction
from django.test import TransactionTestCase

_KEPT = frozenset({"django_migrations", "django_content_type", "auth_permission"})
"""What migrations make of the models, which no test changes."""


def empty_tables(case: TransactionTestCase) -> None:
    """Delete all rows but those that migrations make, in the place of Django's `flush`.

    That makes PostgreSQL's tables anew and then looks for each model's permissions, which takes longer than the test.
    """
    for name in case._databases_names(include_mirrors=False):
        connection = connections[name]
        tables = {*connection.introspection.django_table_names(only_existing=True, include_views=False)} - _KEPT
        with transaction.atomic(using=name), connection.cursor() as cursor:
            for table in sorted(tables):
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
