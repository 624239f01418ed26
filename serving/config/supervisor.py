"""Keeps a set of child processes running, and stops them in order."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from serving.config.child import Backoff, Child, ChildSpec

_HASTENED_SECONDS = 2.0
"""How long each rank of children may take to stop once someone has asked twice."""
_LOGS_EVERY_SECONDS = 10.0
"""How often the length of the children's logs is looked at."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """SIGINT, SIGTERM or SIGHUP came while the supervisor was not watching."""


class ChildCannotStart(Exception):
    """A child has failed too often before everything was up; the message names it and its last words."""


class Supervisor:
    """Owns the children and this process's signal handling, on the main thread; a context manager.

    A stop signal raises `StopRequested` while the caller works, and makes `watch` return while that runs. Leaving the
    context stops every child that is left; a second stop signal hastens that, a third kills.
    """

    def __init__(
        self,
        *,
        log_folder: Path,
        report: Callable[[str], None],
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log_folder = log_folder
        self._report = report
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._children: list[Child] = []
        self._num_stop_requests = 0
        self._logs_due_at = 0.0
        self._raises = True
        self._previous: dict[int, Any] = {}
        self._wakeup, self._waker = socket.socketpair()

    def __enter__(self) -> Supervisor:
        for end in (self._wakeup, self._waker):
            end.settimeout(0)
        self._previous_wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._previous = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, _ignore)}
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup stays in force
                self._previous[number] = signal.signal(number, self._request_stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raises = False
        try:
            self.stop()
        finally:
            for child in self._children:
                child.kill()
            signal.set_wakeup_fd(self._previous_wakeup)
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._wakeup.close()
            self._waker.close()

    def start(self, spec: ChildSpec) -> Child:
        """Start a child and keep it running from the next `watch` on. Raises OSError where that is impossible."""
        child = Child(spec, log_folder=self._log_folder, backoff=self._backoff)
        child.start(self._clock())
        self._children.append(child)
        return child

    def watch(
        self,
        *,
        until: Callable[[], bool] | None = None,
        poll_seconds: float = 0.2,
        give_up_after: int | None = None,
    ) -> bool:
        """Restart what dies until someone asks to stop (then return False) or `until` holds (then True).

        `until` is asked every `poll_seconds`. With `give_up_after`, a child that has ended that many times in a row
        with a failing exit status raises `ChildCannotStart`.
        """
        self._raises = False
        try:
            while not self._num_stop_requests:
                self._restart_dead(give_up_after)
                self._bound_logs()
                if until is not None and until():
                    return True
                self._sleep(self._seconds_to_restart(poll_seconds if until is not None else _LOGS_EVERY_SECONDS))
        finally:
            self._raises = True
        return False

    def stop(self) -> None:
        """Stop every child, rank by rank: SIGTERM, then SIGKILL for what outstays its time. Idempotent."""
        raises, self._raises = self._raises, False
        try:
            for rank in sorted({child.spec.stop_rank for child in self._children}):
                self._stop_rank([child for child in self._children if child.spec.stop_rank == rank])
        finally:
            self._raises = raises

    def _stop_rank(self, children: list[Child]) -> None:
        deadlines = {child: self._clock() + child.spec.stop_seconds for child in children}
        requests_seen = max(self._num_stop_requests, 1)
        for child in children:
            child.ask_to_stop()
        while alive := [child for child in children if child.is_alive]:
            now = self._clock()
            if self._num_stop_requests > requests_seen:
                requests_seen = self._num_stop_requests
                for child in alive:
                    child.ask_to_stop()
            if requests_seen > 1:
                hastened = now + (_HASTENED_SECONDS if requests_seen == 2 else 0.0)
                deadlines = {child: min(deadline, hastened) for child, deadline in deadlines.items()}
            for child in alive:
                if now >= deadlines[child]:
                    self._report(f"{child.spec.name} did not stop in time and was killed")
                    child.kill()
            self._sleep(0.1)
        for child in children:
            child.kill()  # what the ended ones may have left behind

    def _restart_dead(self, give_up_after: int | None) -> None:
        for child in self._children:
            now = self._clock()
            if (line := child.notice_death(now)) is not None:
                if give_up_after is not None and child.num_failed_starts >= give_up_after:
                    raise ChildCannotStart(f"{child.spec.name} cannot start: {child.last_words() or 'it says nothing'}")
                self._report(line)
            elif child.restart_at is not None and now >= child.restart_at:
                try:
                    child.start(now)
                except OSError as error:
                    self._report(child.plan_restart(now, reason=str(error)))

    def _bound_logs(self) -> None:
        if self._clock() < self._logs_due_at:
            return
        self._logs_due_at = self._clock() + _LOGS_EVERY_SECONDS
        for child in self._children:
            try:
                child.bound_log()
            except OSError as error:
                self._report(f"the log of {child.spec.name} grows and cannot be set aside ({error.strerror})")

    def _seconds_to_restart(self, longest: float) -> float:
        due = [child.restart_at for child in self._children if child.restart_at is not None]
        return min([longest, *(max(0.0, at - self._clock()) for at in due)])

    def _sleep(self, seconds: float) -> None:
        select.select([self._wakeup], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(512):
                pass

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._num_stop_requests += 1
        if self._raises:
            raise StopRequested


def _ignore(number: int, frame: FrameType | None) -> None:
    """A child ended: the write to the wake-up socket is all that is needed."""
