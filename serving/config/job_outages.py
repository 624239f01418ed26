"""What the jobs' log says while the database or Redis does not answer: a line as it goes, and one as it is back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery import Task
from django.db import InterfaceError, OperationalError
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

UNREACHABLE = (OperationalError, InterfaceError, RedisError)
"""What says that somebody does not answer. All else that a job raises is a fault, and logged with its traceback."""


class JobOutages:
    """Owns since when the database or Redis does not answer, and which jobs have found out; on the thread that works
    jobs off."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._found_by: dict[str, set[str]] = {}

    def note_failure(self, job: str, error: BaseException) -> None:
        """A job was given up because of one of `UNREACHABLE`: log it where nobody knew."""
        who = _who(error)
        self._found_by.setdefault(who, set()).add(job)
        if who not in self._since:
            self._since[who] = self._clock()
            reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
            logger.warning("%s does not answer (%s): %s and others are done once it does", who, reason, job)

    def note_success(self, job: str) -> None:
        """A job is done: who did not answer it does so again. One that asked nobody tells nothing."""
        for who in [who for who, jobs in self._found_by.items() if job in jobs]:
            del self._found_by[who]
            logger.warning("%s answers again, after %.0f s", who, self._clock() - self._since.pop(who))


class Job(Task):  # type: ignore[misc]
    """Owns nothing: what each task of ours does beside its work. A job that reaches nobody is one line in the log of
    all jobs, not a traceback each time that it is due."""

    throws = UNREACHABLE

    def on_failure(self, exc: BaseException, *_: Any) -> None:
        """Note who does not answer."""
        if isinstance(exc, UNREACHABLE):
            self.app.outages.note_failure(self.name, exc)

    def on_success(self, *_: Any) -> None:
        """Note that somebody answers."""
        self.app.outages.note_success(self.name)


def _who(error: BaseException) -> str:
    return "Redis" if isinstance(error, RedisError) else "the database"
