"""Whether there is anything to work with: what a command says that was started before `serve` or `prepare`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError
from django.db import OperationalError, ProgrammingError, connections

_WHAT_TO_DO = "run `make serve` or `manage.py prepare` first, or set FOOTPLATE_HOME to the folder that is in use"


def check_prepared(*, needs_secret: bool = False) -> None:
    """Raise `CommandError`, one line with the folder that was looked at, where no start has prepared it.

    Makes nothing, and asks no database: a file that SQLite does not find it would make. With `needs_secret`, what signs
    sessions has to be there too.
    """
    home: Path = settings.FOOTPLATE_HOME
    if (database := _missing_file()) is not None:
        raise CommandError(f"nothing is prepared in FOOTPLATE_HOME, {home}: there is no {database}; {_WHAT_TO_DO}")
    secret: Path | None = settings.SECRET_KEY_FILE
    if needs_secret and secret is not None and not secret.exists():
        raise CommandError(f"nothing is prepared in FOOTPLATE_HOME, {home}: there is no {secret}; {_WHAT_TO_DO}")


@contextlib.contextmanager
def prepared_database() -> Iterator[None]:
    """Around a command's work with the database.

    Raises `CommandError`, one line, where nothing is prepared, or the database does not answer or lacks tables.
    """
    check_prepared()
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what_to_do = "`manage.py prepare` makes tables that are missing, DATABASE_URL says where it is"
        raise CommandError(f"the database cannot be used ({reason}); {what_to_do}") from None


def _missing_file() -> Path | None:
    """The file of a SQLite database that is not there."""
    database = connections["default"].settings_dict
    if "sqlite" not in database["ENGINE"]:
        return None
    name = str(database["NAME"])
    is_file = name != ":memory:" and not name.startswith("file:")
    return Path(name) if is_file and not Path(name).exists() else None
