"""The triggers that keep the audit append-only, which most tests do without: SQLite empties tables by deleting rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module

from django.db import connection

_MIGRATION = import_module("serving.audit.migrations.0001_first")


def drop_triggers() -> None:
    """Let the table be emptied."""
    _execute(_MIGRATION.DROP[connection.vendor])


@contextlib.contextmanager
def triggers() -> Iterator[None]:
    """The triggers, as in production."""
    _execute(_MIGRATION.MAKE[connection.vendor])
    try:
        yield
    finally:
        drop_triggers()


def _execute(statements: tuple[str, ...]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
