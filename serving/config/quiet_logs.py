"""What keeps a library's log from filling with one line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_SILENT_SECONDS = 60.0


class Unrepeated(logging.Filter):
    """Owns the last message that passed, and when it was last said. A message is one line, and passes again when it is
    another, or was not said for a minute. `by_form`, those that differ in their values alone are one. From any thread:
    at worst a line is said twice."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, by_form: bool = False) -> None:
        super().__init__()
        self._by_form = by_form
        self._clock = clock
        self._last = ""
        self._said_at = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it; cuts it to its first line, without a traceback."""
        line = (record.getMessage().splitlines() or [""])[0]
        said = str(record.msg) if self._by_form else line
        record.msg, record.args, record.exc_info = line, (), None
        now = self._clock()
        is_new = said != self._last or now - self._said_at >= _SILENT_SECONDS
        self._last, self._said_at = said, now
        return is_new
