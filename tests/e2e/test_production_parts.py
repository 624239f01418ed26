"""The same product over a PostgreSQL and a Redis of the operator's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import redis

from tests.e2e.stack import Stack, open_stream
from tests.servers import new_database

pytestmark = [pytest.mark.stack, pytest.mark.model]


@pytest.fixture(scope="module")
def database_url(postgres_url: str) -> str:
    """The URL of a database that this module's tests share."""
    return new_database(postgres_url)


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, default_model: Path, database_url: str, valkey_url: str
) -> Iterator[Stack]:
    redis.Redis.from_url(valkey_url).flushall()
    servers = {"DATABASE_URL": database_url, "REDIS_URL": valkey_url}
    stack = Stack.over(tmp_path_factory.mktemp("production"), default_model, **servers)
    yield stack
    stack.kill()


@pytest.fixture
def production(shared: Stack) -> Stack:
    """A stack over servers of the operator's own, started again where the test before has ended it."""
    return shared if shared.is_running else shared.start()


def test_serves_and_keeps_its_versions_on_postgresql_and_a_redis_of_its_own(production: Stack, valkey_url: str) -> None:
    stack = production
    version = stack.tune(max_running=5)["version"]
    answer = httpx.post(
        f"{stack.url}/v1/completions",
        headers=stack.headers,
        json={"model": "SmolLM2-135M-Instruct", "prompt": "Hello", "max_tokens": 4},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert not (stack.home / "footplate.sqlite3").exists()
    assert stack.stop() == 0
    redis.Redis.from_url(valkey_url).flushall()
    stack.start()
    snapshot = stack.wait_for(lambda s: s["tunables_version"] == version and s["applied_by"] == 1)
    assert snapshot["num_engines"] == 1


def test_streams_hold_no_database_connection(production: Stack, database_url: str) -> None:
    stack = production
    earlier = stack.wait_until_settled()["outcomes"]
    stack.tune(max_running=1, max_queue_requests=200)

    def num_connections() -> int:
        with psycopg.connect(database_url) as connection:
            count = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone()
        assert count is not None
        return int(count[0])

    before = num_connections()
    for _ in range(3):
        streams = [open_stream(stack) for _ in range(100)]
        stack.wait_for(lambda s: s["num_running"] + s["num_waiting"] == 100)
        during = num_connections()
        for stream in streams:
            stream.close()
        stack.wait_until_idle()
        # Each of web, monitor and jobs has a pool of at most eight; a hundred streams add none to that.
        assert during <= max(before, 8) + 8
    assert num_connections() <= max(before, 8) + 8
    aborted, submitted = (earlier.get(name, 0) + 300 for name in ("aborted", "submitted"))
    outcomes = stack.wait_for(lambda s: s["outcomes"].get("aborted", 0) == aborted)["outcomes"]
    assert outcomes["submitted"] == submitted
