"""The same product over a PostgreSQL and a Redis of the operator's own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable

import httpx
import openai
import psycopg
import pytest
import redis

from tests.e2e.stack import Stack, open_stream

MakeStack = Callable[..., Stack]


@pytest.mark.stack
@pytest.mark.model
def test_serves_and_keeps_its_versions_on_postgresql_and_a_redis_of_its_own(
    own_stack: MakeStack, fresh_postgres_url: str, valkey: str
) -> None:
    stack = own_stack(DATABASE_URL=fresh_postgres_url, REDIS_URL=valkey).start()
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
    redis.Redis.from_url(valkey).flushall()
    stack.start()
    snapshot = stack.wait_for(lambda s: s["tunables_version"] == version and s["applied_by"] == 1)
    assert snapshot["num_engines"] == 1


@pytest.mark.stack
@pytest.mark.model
def test_recovers_from_a_redis_that_restarts_empty_under_load(own_stack: MakeStack) -> None:
    stack = own_stack().start()
    version = stack.tune(max_running=9)["version"]
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.first_run["api_key"], max_retries=0) as client:

        def ask() -> str:
            answer = client.completions.create(
                model="SmolLM2-135M-Instruct", prompt="The sea", max_tokens=150, temperature=0, stream=True
            )
            text = ""
            for index, chunk in enumerate(answer):
                if index == 5:
                    interrupt()
                text += chunk.choices[0].text
            return text

        def interrupt() -> None:
            if stack.home.joinpath("interrupted").exists():
                return
            stack.home.joinpath("interrupted").touch()
            shutil.rmtree(stack.home / "valkey" / "appendonlydir")
            os.kill(stack.pid_of("valkey"), signal.SIGKILL)

        disturbed = ask()
        assert disturbed == ask()
    stack.wait_for(lambda s: s["tunables_version"] == version and s["applied_by"] == 1)
    stack.wait_until_idle()


@pytest.mark.stack
@pytest.mark.model
def test_streams_hold_no_database_connection(own_stack: MakeStack, fresh_postgres_url: str, valkey: str) -> None:
    stack = own_stack(DATABASE_URL=fresh_postgres_url, REDIS_URL=valkey).start()
    stack.tune(max_running=1, max_queue_requests=200)

    def num_connections() -> int:
        with psycopg.connect(fresh_postgres_url) as connection:
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
    outcomes = stack.wait_for(lambda s: s["outcomes"].get("aborted", 0) == 300)["outcomes"]
    assert outcomes["submitted"] == 300
