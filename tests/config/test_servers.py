"""The embedded Valkey, and the real servers that tests run against."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psycopg
import pytest
import redis

from serving.config.valkey import RedisUnreachable, ping, server_command, wait_for_redis, without_password


def test_valkey_answers_on_a_socket_for_its_owner_alone(valkey: str) -> None:
    socket = Path(valkey.removeprefix("unix://"))
    assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    with redis.Redis.from_url(valkey) as client:
        assert client.ping()
        assert client.config_get("port")["port"] == "0"


def test_valkey_logs_every_write_and_evicts_nothing(valkey: str) -> None:
    with redis.Redis.from_url(valkey) as client:
        settings = client.config_get("*")
    assert settings["appendonly"] == "yes"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""


def test_each_test_finds_valkey_empty(valkey: str) -> None:
    with redis.Redis.from_url(valkey) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_each_test_finds_valkey_empty_again(valkey: str) -> None:
    with redis.Redis.from_url(valkey) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_says_where_nothing_answers_and_hides_the_password() -> None:
    with pytest.raises(RedisUnreachable) as problem:
        ping("redis://operator:hush@127.0.0.1:1/0")
    assert "127.0.0.1:1/0" in str(problem.value)
    assert "hush" not in str(problem.value)
    assert "\n" not in str(problem.value)


def test_waits_no_longer_for_a_server_that_is_dead(tmp_path: Path) -> None:
    with pytest.raises(RedisUnreachable):
        wait_for_redis(f"unix://{tmp_path / 'none.sock'}", seconds=3600, is_alive=lambda: False)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://a:b@host:1/0", "redis://…@host:1/0"),
        ("redis://:p@ss@host", "redis://…@host"),
        ("unix:///run/a.sock", "unix:///run/a.sock"),
    ],
)
def test_shows_an_address_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_data_folder_is_closed_to_others(tmp_path: Path) -> None:
    server_command(socket=tmp_path / "s", folder=tmp_path / "data")
    assert stat.S_IMODE(os.stat(tmp_path / "data").st_mode) == 0o700


def test_postgres_is_real(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT version(), current_database()").fetchone()
    assert row is not None
    assert row[0].startswith("PostgreSQL 18")
    assert row[1] == "footplate"
