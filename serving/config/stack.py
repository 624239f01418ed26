"""Everything on one machine: what `manage.py serve` starts, watches and stops."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from django.conf import settings

from serving.config import bootstrap
from serving.config.child import ChildSpec
from serving.config.home import Home, StartProblem, locked_home
from serving.config.pools import PoolSettings
from serving.config.readiness import Readiness
from serving.config.supervisor import ChildCannotStart, StopRequested, Supervisor
from serving.config.valkey import READY_SECONDS, RedisUnreachable, ping, server_command, wait_for_redis
from serving.config.web_server import AddressInUse, open_listener

_GIVE_UP_AFTER = 3
"""Starts of one child that may fail in a row before everything was up once."""
_OWNERS, _REST, _VALKEY = range(3)
"""Ranks, first to be stopped first: those who own requests, then those whom they need, then what all need."""


def serve() -> None:
    """Run all processes until a signal asks to stop, then drain and stop them.

    Raises `StartProblem` with one line where the start cannot go on; whatever was started is stopped by then.
    """
    os.umask(0o077)  # what this and every child writes holds digests, prompts and logs: for the owner's eyes only
    with locked_home() as home:
        _check_port()
        to_import_for = bootstrap.pools_to_import_for()
        with Supervisor(log_folder=settings.FOOTPLATE_HOME / "logs", report=_say) as supervisor:
            try:
                _start_and_watch(supervisor, home, to_import_for=to_import_for)
            except StopRequested:
                pass
            except (ChildCannotStart, RedisUnreachable, AddressInUse) as problem:
                raise StartProblem(str(problem)) from None
            except OSError as error:
                raise StartProblem(f"a process could not be started ({error})") from None
            _say("stopping: running requests may end first (Ctrl-C again hastens)")
        if home.is_kept:
            bootstrap.settle_database()
        _say("stopped")


def _start_and_watch(supervisor: Supervisor, home: Home, *, to_import_for: list[PoolSettings]) -> None:
    _start_redis(supervisor)
    # Engines, the slowest to start, go first, beside everything that follows.
    _start_engines(supervisor, [pool for pool in _pools() if pool not in to_import_for])
    is_first = bootstrap.prepare_database(_say, with_accounts=True)
    home.keep()
    bootstrap.collect_static_files()
    if to_import_for:
        _say(f"importing the default model, {bootstrap.DEFAULT_MODEL} (once)")
        bootstrap.import_default_model()
        _start_engines(supervisor, to_import_for)
    supervisor.start(_manage("web", "runweb", stop_rank=_OWNERS, stop_seconds=settings.FOOTPLATE_DRAIN_SECONDS + 8))
    supervisor.start(_manage("monitor", "runmonitor", stop_rank=_REST))
    supervisor.start(_manage("jobs", "runjobs", stop_rank=_OWNERS))
    supervisor.start(_manage("lab", "runjobs", "--queue", "lab", stop_rank=_OWNERS))
    ready = Readiness(bootstrap.base_url(settings.HOST, settings.PORT), complain=_complain)
    if supervisor.watch(until=ready, poll_seconds=0.2, give_up_after=_GIVE_UP_AFTER):
        _show_the_way(is_first=is_first)
        supervisor.watch()


def _check_port() -> None:
    try:
        open_listener(settings.HOST, settings.PORT).close()
    except AddressInUse as problem:
        raise StartProblem(str(problem)) from None


def _start_redis(supervisor: Supervisor) -> None:
    if not settings.EMBEDDED_VALKEY:
        ping(settings.REDIS_URL)
        return
    command = server_command(socket=settings.EMBEDDED_VALKEY_SOCKET, folder=settings.FOOTPLATE_HOME / "valkey")
    spec = ChildSpec(name="valkey", command=tuple(command), environment=os.environ, stop_rank=_VALKEY)
    child = supervisor.start(spec)
    try:
        wait_for_redis(settings.REDIS_URL, seconds=READY_SECONDS, is_alive=lambda: child.is_alive)
    except RedisUnreachable:
        raise StartProblem(f"the embedded Valkey does not start: {child.last_words() or 'it says nothing'}") from None


def _pools() -> list[PoolSettings]:
    return list(settings.FOOTPLATE_POOLS.values())


def _start_engines(supervisor: Supervisor, pools: Sequence[PoolSettings]) -> None:
    for pool in pools:
        supervisor.start(engine_child(pool, all_pools=_pools()))


def engine_child(pool: PoolSettings, *, all_pools: Sequence[PoolSettings]) -> ChildSpec:
    """The engine of a pool, on a machine that runs one for each of `all_pools`."""
    return _manage(
        "engine" if len(all_pools) == 1 else f"engine-{pool.name}",
        "runengine",
        f"--pool={pool.name}",
        f"--engines-here={max(1, sum(each.device == 'cpu' for each in all_pools))}",
        stop_rank=_REST,
        threads={"OMP_NUM_THREADS": str(pool.threads)} if pool.threads else {},
    )


def _manage(
    name: str,
    *command: str,
    stop_rank: int,
    stop_seconds: float = 10.0,
    threads: Mapping[str, str] | None = None,
) -> ChildSpec:
    # The engine has the cores; a thread pool in every other process would only be in its way.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} if threads is None else threads
    return ChildSpec(
        name=name,
        command=(sys.executable, str(settings.BASE_DIR / "manage.py"), *command),
        environment={**os.environ, **threads, "PYTHONUNBUFFERED": "1"},
        stop_rank=stop_rank,
        stop_seconds=stop_seconds,
    )


def _show_the_way(*, is_first: bool) -> None:
    base, file = bootstrap.base_url(settings.HOST, settings.PORT), bootstrap.first_run_file()
    _say("ready: " + ", ".join(f"{pool.model.name} is served by pool {pool.name}" for pool in _pools()))
    lines = [
        ("console", f"{base}/console/"),
        ("API", f"{base}/v1"),
        ("documentation", f"{base}/docs"),
        ("logs", str(settings.FOOTPLATE_HOME / "logs")),
    ]
    if is_first:
        content = json.loads(file.read_text())
        lines += [(name.replace("_", " "), content[name]) for name in ("username", "password", "api_key")]
        lines.append(("kept in", str(file)))
    elif file.exists():
        lines.append(("credentials", str(file)))
    for name, value in lines:
        _print(f"  {name:<14} {value}")


def _complain(problem: str) -> None:
    _say(f"not ready yet: {problem} (logs: {settings.FOOTPLATE_HOME / 'logs'})")


def _say(line: str) -> None:
    _print(f"footplate: {line}")


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:  # the terminal is gone: no reason to leave children behind
        return
