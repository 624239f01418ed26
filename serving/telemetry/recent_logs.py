"""The last lines of each process's log, for who looks at it from afar. No key of the API is ever in them."""

from __future__ import annotations

import itertools
import logging
import re
from collections import deque
from typing import cast

import msgspec
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.texts import without_secrets

NUM_LINES = 200
LIFE_SECONDS = 3600
"""How long lines stay after the last sign of life of the process that wrote them."""
_HEAD, _TAIL = 1000, 3000
"""Characters that are kept of a long text: how it begins, and how it ends, which is where a traceback says why."""
_MARGIN = 8
"""So much more is kept until secrets are out: a secret that is cut cannot be told from other text."""
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
"""Up to the last of the signs that could end them: a password may hold one itself."""
_CONTROLS = {number: "\ufffd" for number in range(32) if chr(number) not in "\n\t"} | {127: "\ufffd"}


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """One record of a log. `number` counts the process's records; `unix_seconds` is of its own clock, `level` one of
    `logging`'s numbers."""

    number: int
    unix_seconds: float
    level: int
    logger: str
    text: str


class RecentLogs(logging.Handler):
    """Owns the last lines that were not handed over yet, 200 at most: where more come, the oldest are dropped.

    Any thread logs, which costs it the forming of the text; one thread takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._lines: deque[LogLine] = deque(maxlen=NUM_LINES)
        self._tracebacks = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's text as it is now. Never raises."""
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{self._tracebacks.formatException(record.exc_info)}"
        except Exception:
            self.handleError(record)
            return
        text = _shortened(text, times=_MARGIN)
        self._lines.append(LogLine(next(self._numbers), record.created, record.levelno, record.name, text))

    def take(self) -> list[LogLine]:
        """Hand over the lines since the last time, the oldest first: shortened, and without secrets."""
        taken: list[LogLine] = []
        while True:
            try:
                line = self._lines.popleft()
            except IndexError:
                return taken
            taken.append(msgspec.structs.replace(line, text=_presentable(line.text)))


def write_lines(redis: BlockingRedis, process_id: str, lines: list[LogLine]) -> None:
    """Add lines to what is kept of a process's log. Blocking; errors of Redis pass through."""
    key = keys.process_log(process_id)
    pipe = redis.pipeline(transaction=False)
    pipe.rpush(key, *map(_encode, lines))
    pipe.ltrim(key, -NUM_LINES, -1)
    pipe.expire(key, LIFE_SECONDS)
    pipe.execute()


async def read_lines(redis: Redis, process_id: str, *, level: int = logging.NOTSET) -> list[LogLine]:
    """What is kept of a process's log from `level` on, the newest first. Errors of Redis pass through."""
    stored = cast("list[bytes]", await redis.lrange(keys.process_log(process_id), 0, -1))
    lines = [decode_or_none(_decode, each) for each in reversed(stored)]
    return [line for line in lines if line is not None and line.level >= level]


def _presentable(text: str) -> str:
    clean = _CREDENTIALS.sub("…@", without_secrets(text)).translate(_CONTROLS)
    return _shortened(clean.encode("utf-8", "replace").decode("utf-8"), times=1)


def _shortened(text: str, *, times: int) -> str:
    head, tail = _HEAD * times, _TAIL * times
    return text if len(text) <= head + tail else f"{text[:head]} … {text[-tail:]}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogLine).decode
