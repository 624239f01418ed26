"""What a start sets up, and how it says what stands in its way."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from serving.config.bootstrap import base_url, console_url
from serving.config.valkey import RedisUnreachable, ping

ROOT = Path(__file__).resolve().parents[2]
UNREACHABLE_DATABASE = "postgresql://footplate:hush@127.0.0.1:1/footplate"


def environment(home: Path, **variables: str) -> dict[str, str]:
    unset = {"REDIS_URL", "DATABASE_URL", "HOST", "PORT", "DJANGO_SETTINGS_MODULE"}
    inherited = {
        name: value for name, value in os.environ.items() if name not in unset and not name.startswith("FOOTPLATE_")
    }
    return {**inherited, "FOOTPLATE_HOME": str(home), "PYTHONPATH": str(ROOT), "PORT": str(free_port()), **variables}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "manage.py"), "serve"]
    return subprocess.run(
        command, env=environment(home, **variables), capture_output=True, text=True, timeout=120, check=False
    )


def first_start(home: Path, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "config" / "first_start.py")],
        env=environment(home, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("footplate: ")
    for word in words:
        assert word in done.stderr


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    with (home / "serve.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder that passes for a model until an engine looks into it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.mark.stack
def test_says_that_the_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_one_line(serve(tmp_path / "home", PORT=port), f"port {port} on 127.0.0.1 is taken")
    assert list(tmp_path.iterdir()) == [], "a refused start leaves no new home behind"


@pytest.mark.stack
def test_says_that_the_model_is_missing(tmp_path: Path) -> None:
    done = serve(tmp_path / "home", FOOTPLATE_MODEL=str(tmp_path / "nowhere"))
    assert_one_line(done, "FOOTPLATE_MODEL", "nowhere", "pool default")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.stack
def test_says_which_pool_misses_its_model(tmp_path: Path, model: str) -> None:
    done = serve(tmp_path, FOOTPLATE_MODEL=model, FOOTPLATE_POOLS=f"chat; bulk model={tmp_path / 'nowhere'}")
    assert_one_line(done, "the model of pool bulk", "nowhere, is no model folder", "FOOTPLATE_POOLS")


@pytest.mark.stack
def test_says_that_a_pool_is_set_up_wrongly(tmp_path: Path) -> None:
    done = serve(tmp_path / "home", FOOTPLATE_POOLS="chat; bulk weights=int3")
    assert_one_line(done, "FOOTPLATE_POOLS: weights of pool bulk must be one of", "not 'int3'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.stack
def test_says_that_redis_is_not_reachable(tmp_path: Path, model: str) -> None:
    done = serve(tmp_path, FOOTPLATE_MODEL=model, REDIS_URL="redis://:hush@127.0.0.1:1/0")
    assert_one_line(done, "Redis at redis://…@127.0.0.1:1/0 does not answer")
    assert "hush" not in done.stderr


@pytest.mark.stack
def test_says_that_the_disk_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    assert_one_line(serve(tmp_path), "FOOTPLATE_HOME", "cannot be written")


@pytest.mark.stack
def test_says_that_another_one_runs_on_the_same_home(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert_one_line(serve(tmp_path), "another `serve` runs on")


@pytest.mark.stack
def test_says_that_the_database_does_not_answer_and_leaves_nothing_running(tmp_path: Path, model: str) -> None:
    home = tmp_path / "home"
    done = serve(home, FOOTPLATE_MODEL=model, DATABASE_URL=UNREACHABLE_DATABASE)
    assert_one_line(done, "the database does not answer", "DATABASE_URL")
    assert "hush" not in done.stderr
    with pytest.raises(RedisUnreachable):
        ping(f"unix://{home / 'valkey' / 'valkey.sock'}")
    assert not home.exists()


@pytest.mark.stack
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_first_start_makes_operator_key_and_pool_once(
    tmp_path: Path, backend: str, request: pytest.FixtureRequest
) -> None:
    variables = {}
    if backend == "postgres":
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE first_start")
        variables["DATABASE_URL"] = url.replace("/footplate?", "/first_start?")
    first = first_start(tmp_path, **variables)
    assert first["was_first"]
    assert first["said"] == ["preparing the database"]
    assert first["content"].keys() == {"console_url", "username", "password", "api_key"}
    assert first["is_operator"]
    assert first["scopes"] == ["admin", "batch", "generate", "observe", "operate"]
    assert first["most_urgent"] == -100
    assert first["roles"] == ["admin", "auditor", "operator", "viewer"]
    assert (first["pools"], first["version"], first["num_users"]) == (["default"], 1, 1)
    assert stat.S_IMODE((tmp_path / "first-run.json").stat().st_mode) == 0o600

    second = first_start(tmp_path, **variables)
    assert (second["was_first"], second["said"]) == (False, [])
    assert second["content"] == first["content"]
    assert (second["version"], second["num_users"]) == (1, 1)


@pytest.mark.stack
def test_every_start_makes_the_pools_that_are_missing_and_keeps_the_others(tmp_path: Path) -> None:
    assert first_start(tmp_path)["pools"] == ["default"]
    assert first_start(tmp_path, FOOTPLATE_POOLS="default; bulk model=/models/other")["pools"] == ["bulk", "default"]
    last = first_start(tmp_path, FOOTPLATE_POOLS="bulk")
    assert (last["pools"], last["models"]) == (
        ["bulk", "default"],
        {"default": "SmolLM2-135M-Instruct", "bulk": "SmolLM2-135M-Instruct"},
    )
    assert last["configured"] == ["bulk"]
    assert last["said"] == ["pool default is no longer configured: its past stays, and nothing can be done to it"]
    assert first_start(tmp_path)["configured"] == ["default"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("box.lan", "http://box.lan:8000"),
    ],
)
def test_an_address_is_one_that_this_machine_can_open(host: str, url: str) -> None:
    assert base_url(host, 8000) == url
    assert console_url(host, 8000) == f"{url}/console/"
