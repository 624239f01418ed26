"""Everything on one machine: what `manage.py serve` starts, watches and stops."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from django.conf import settings

from serving.config import bootstrap
from serving.config.bootstrap import StartProblem
from serving.config.child import ChildSpec
from serving.config.supervisor import ChildCannotStart, StopRequested, Supervisor
from serving.config.valkey import READY_SECONDS, RedisUnreachable, ping, server_command, wait_for_redis
from serving.config.web_server import AddressInUse, open_listener

_PATIENCE_SECONDS = 60.0
"""After this long without being ready, say what is missing."""
_GIVE_UP_AFTER = 3
"""Starts of one child that may fail in a row before everything was up once."""
_WEB, _ENGINE, _REST, _VALKEY = range(4)
"""Ranks, first to be stopped first."""


def serve() -> None:
    """Run all processes until a signal asks to stop, then drain and stop them.

    Raises `StartProblem` with one line where the start cannot go on; whatever was started is stopped by then.
    """
    os.umask(0o077)  # what this and every child writes holds digests, prompts and logs: for the owner's eyes only
    with bootstrap.locked_home():
        _check_port()
        with_model = bootstrap.has_model()
        with Supervisor(log_folder=settings.FOOTPLATE_HOME / "logs", report=_say) as supervisor:
            try:
                _start_and_watch(supervisor, with_model=with_model)
            except StopRequested:
                pass
            except (ChildCannotStart, RedisUnreachable, AddressInUse) as problem:
                raise StartProblem(str(problem)) from None
            except OSError as error:
                raise StartProblem(f"a process could not be started ({error})") from None
            _say("stopping: running requests may end first (Ctrl-C again hastens)")
        _say("stopped")


def _start_and_watch(supervisor: Supervisor, *, with_model: bool) -> None:
    _start_redis(supervisor)
    if with_model:  # the slowest to start goes first, beside everything that follows
        supervisor.start(_engine())
    is_first = bootstrap.prepare_database(_say, with_accounts=True)
    bootstrap.collect_static_files()
    if not with_model:
        _say(f"importing the default model, {bootstrap.DEFAULT_MODEL} (once)")
        bootstrap.import_default_model()
        supervisor.start(_engine())
    supervisor.start(_manage("web", "runweb", stop_rank=_WEB, stop_seconds=settings.FOOTPLATE_DRAIN_SECONDS + 8))
    supervisor.start(_manage("monitor", "runmonitor", stop_rank=_REST))
    supervisor.start(_manage("jobs", "runjobs", stop_rank=_REST))
    if supervisor.watch(until=_Readiness(), poll_seconds=0.2, give_up_after=_GIVE_UP_AFTER):
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


def _engine() -> ChildSpec:
    threads = {"OMP_NUM_THREADS": str(settings.FOOTPLATE_THREADS)} if settings.FOOTPLATE_THREADS else {}
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        # Threads that wait for each other on a core that another process has use it up without a result: beside one
        # busy process, two cores gave a tenth of the tokens. Waiting briefly costs a sixth on an idle machine.
        threads["GOMP_SPINCOUNT"] = "1000"
    return _manage("engine", "runengine", stop_rank=_ENGINE, threads=threads)


def _manage(
    name: str,
    command: str,
    *,
    stop_rank: int,
    stop_seconds: float = 10.0,
    threads: Mapping[str, str] | None = None,
) -> ChildSpec:
    # The engine has the cores; a thread pool in every other process would only be in its way.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} if threads is None else threads
    return ChildSpec(
        name=name,
        command=(sys.executable, str(settings.BASE_DIR / "manage.py"), command),
        environment={**os.environ, **threads, "PYTHONUNBUFFERED": "1"},
        stop_rank=stop_rank,
        stop_seconds=stop_seconds,
    )


class _Readiness:
    """Asks the web process whether all is up; owns when to complain next. On the supervisor's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = urlsplit(bootstrap.base_url(settings.HOST, settings.PORT))
        self._clock = clock
        self._complain_at = clock() + _PATIENCE_SECONDS

    def __call__(self) -> bool:
        problem = self._ask()
        if problem is not None and self._clock() >= self._complain_at:
            self._complain_at = self._clock() + _PATIENCE_SECONDS
            _say(f"not ready yet: {problem} (logs: {settings.FOOTPLATE_HOME / 'logs'})")
        return problem is None

    def _ask(self) -> str | None:
        assert self._address.hostname is not None, "the address is our own"
        connection = http.client.HTTPConnection(self._address.hostname, self._address.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            answer = response.read(2000).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return "the web process does not answer"
        finally:
            connection.close()
        return None if response.status == 200 else answer


def _show_the_way(*, is_first: bool) -> None:
    base, file = bootstrap.base_url(settings.HOST, settings.PORT), bootstrap.first_run_file()
    _say(f"ready: {settings.FOOTPLATE_MODEL.name} is served")
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


def _say(line: str) -> None:
    _print(f"footplate: {line}")


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:  # the terminal is gone: no reason to leave children behind
        return
