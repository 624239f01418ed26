"""Fixtures that several folders of tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest_django
import redis
from django.test import TransactionTestCase

from tests.audit.triggers import drop_triggers
from tests.choosing import KINDS, kinds_in, may_have_chosen
from tests.emptying import empty_tables
from tests.servers import new_database, running_postgres, running_valkey

_LONGEST = (
    "tests/engine/test_default_model_text.py",
    "tests/dashboard/test_database.py",
    "tests/config/test_on_postgresql.py",
)

# However loaded the machine is, an example may take its time.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load no file in which nothing is of the kinds that were asked for."""
    expression = str(config.option.markexpr)
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and expression and not may_have_chosen(collection_path, expression) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first: where modules run side by side, none is left to run alone at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))
    for path, of_file in itertools.groupby(items, key=lambda item: item.path):
        found = {mark.name for item in of_file for mark in item.iter_markers()} & KINDS
        if unseen := found - kinds_in(path.read_text(encoding="utf-8")):
            raise pytest.UsageError(f"{path}: marks come from elsewhere, so that runs may miss the file: {unseen}")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> None:
    """As ever, but that tables are emptied by deleting rows, the audit's too."""
    with django_db_blocker.unblock():
        drop_triggers()
    TransactionTestCase._fixture_teardown = empty_tables


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The URL of a real Valkey that all tests of the session share."""
    with running_valkey() as url:
        yield url


@pytest.fixture
def valkey(valkey_url: str) -> str:
    """The URL of a real Valkey that holds nothing."""
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
    return valkey_url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty database in a real PostgreSQL that all tests of the session share."""
    with running_postgres() as url:
        yield url


@pytest.fixture
def fresh_postgres_url(postgres_url: str) -> str:
    """The URL of a database of the test's own in the session's PostgreSQL."""
    return new_database(postgres_url)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's folder."""
    from tests.default_model import import_default_model  # loads torch, which most tests do without

    return import_default_model()
