"""One supervised child: what it runs, its process, its log file, and when it may be started again."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from serving.config.processes import describe_exit, signal_group, start_child

MAX_LOG_BYTES = 16 * 1024 * 1024
"""A log that has grown beyond this is set aside; one older one is kept."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to run. Children of a lower `stop_rank` are stopped first, and the next rank only when they have ended;
    one that is still there `stop_seconds` after SIGTERM is killed."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stop_rank: int = 0
    stop_seconds: float = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a restart: doubled from `first` to `longest` with each failure in a row; a child that stayed up
    for `reset_after` starts over."""

    first: float = 0.5
    longest: float = 30.0
    reset_after: float = 60.0

    def delay(self, num_failures: int) -> float:
        """The wait after the given number of failures in a row, at least one."""
        return float(min(self.first * 2 ** min(num_failures - 1, 30), self.longest))


class Child:
    """Owns one child process and the writing end of its log, on the supervisor's thread."""

    def __init__(self, spec: ChildSpec, *, log_folder: Path, backoff: Backoff) -> None:
        self.spec = spec
        self.log = log_folder / f"{spec.name}.log"
        self.num_failed_starts = 0
        """Ends in a row with an exit status other than 0, not counting those by a signal."""
        self._backoff = backoff
        self._process: subprocess.Popen[bytes] | None = None
        self._num_failures = 0
        self._started_at = 0.0
        self._log_start = 0
        self._restart_at: float | None = None
        self._num_starts = 0

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def restart_at(self) -> float | None:
        """When it is due to be started again."""
        return self._restart_at

    def start(self, now: float) -> None:
        """Start the process. Raises OSError where it cannot be executed or its log cannot be written."""
        self._restart_at = None
        self._started_at = now
        _rotate(self.log)
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            environment = {**self.spec.environment, "FOOTPLATE_RESTARTS": str(self._num_starts)}
            self._process = start_child(self.spec.command, environment=environment, output=output)
        self._num_starts += 1

    def notice_death(self, now: float) -> str | None:
        """If the process has ended, plan its restart and return one line that says so."""
        if self._process is None or self._process.poll() is None:
            return None
        process, self._process = self._process, None
        signal_group(process, signal.SIGKILL)  # what it may have left behind
        if now - self._started_at >= self._backoff.reset_after:
            self._num_failures = self.num_failed_starts = 0
        self.num_failed_starts += process.returncode > 0
        return self.plan_restart(now, reason=self._reason(process.returncode))

    def plan_restart(self, now: float, *, reason: str) -> str:
        """Count a failure, plan the restart and return one line that says so."""
        self._num_failures += 1
        delay = self._backoff.delay(self._num_failures)
        self._restart_at = now + delay
        return f"{self.spec.name} died ({reason}), restarting in {delay:g} s"

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process, and forget a planned restart."""
        self._restart_at = None
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and whatever it started in its group, and wait for its end."""
        self._restart_at = None
        if self._process is None:
            return
        signal_group(self._process, signal.SIGKILL)
        self._process.wait()

    def bound_log(self) -> None:
        """Set the log aside where it has grown too long, while the process goes on writing it. Raises OSError.

        What the process writes between the last byte that is copied and the cut, some microseconds, is lost.
        """
        if not _is_too_long(self.log):
            return
        with self.log.open("rb+") as log, _older(self.log).open("wb") as older:
            shutil.copyfileobj(log, older)
            log.truncate(0)  # the process appends: it goes on at the new end
        self._log_start = 0

    def last_words(self) -> str:
        """The last line that the latest process wrote, empty where it wrote none."""
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - 4096))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[:300] if lines else ""

    def _reason(self, status: int) -> str:
        words = self.last_words() if status > 0 else ""
        return f"{describe_exit(status)}: {words}" if words else describe_exit(status)


def _rotate(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    if _is_too_long(log):
        log.replace(_older(log))


def _is_too_long(log: Path) -> bool:
    return log.exists() and log.stat().st_size > MAX_LOG_BYTES


def _older(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")
