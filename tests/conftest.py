"""Fixtures that several folders of tests share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import pytest_django
import redis

from tests.audit.triggers import drop_triggers
from tests.servers import running_postgres, running_valkey

_LONGEST = "tests/engine/test_default_model_text.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest module first: where modules run side by side, none is left to run alone at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> None:
    """As ever, but that the audit's table can be emptied: SQLite does so after a test by deleting rows."""
    with django_db_blocker.unblock():
        drop_triggers()


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
    name = f"footplate_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_url.replace("/footplate?", f"/{name}?")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model, imported once and kept for later sessions; sessions that run at once wait for the first."""
    from serving.engine.models.importer import import_model  # loads torch, which most tests do without

    return import_model(None, into=Path(__file__).parent.parent / "var" / "test-models")
