"""Which processes there are, as each tells of itself every few seconds, and which were there within the last hour."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Literal, cast

import msgspec
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.resources import resident_bytes
from serving.telemetry.recent_logs import LIFE_SECONDS, NUM_LINES, LogLine, RecentLogs, write_lines
from serving.version import software_version

logger = logging.getLogger(__name__)

BEAT_SECONDS = 3.0
LOST_SECONDS = 10.0
"""A process that has given no sign of life for so long is gone."""
_TICK_SECONDS = 0.5
_LONGEST_DOING = 200

ProcessKind = Literal["web", "engine", "monitor", "jobs"]
ProcessState = Literal["up", "ended", "lost"]


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A process as it tells of itself. An engine's `process_id` is its engine id. `restarts` says how often whatever
    supervises it had started one of its name again before (None: nobody counts). `cpu_ratio` is the share of one core
    that it used lately, above 1 where it used several. `doing` says in words what it is at."""

    process_id: str
    kind: ProcessKind
    name: str
    host: str
    pid: int
    version: str
    uptime_seconds: float
    restarts: int | None
    rss_bytes: int
    cpu_ratio: float
    doing: str = ""
    has_ended: bool = False


class SeenProcess(msgspec.Struct, frozen=True):
    """A process, how long ago it gave its last sign of life, and what that makes of it: `lost` is who ended without
    saying so."""

    record: ProcessRecord
    seconds_ago: float

    @property
    def state(self) -> ProcessState:
        if self.record.has_ended:
            return "ended"
        return "lost" if self.seconds_ago > LOST_SECONDS else "up"


class ProcessBeacon:
    """Owns the thread that tells of this process: what it uses and does every three seconds, its log twice a second.

    A context manager around the process's work. Never in its way: where Redis is out of reach the thread waits, and log
    lines beyond the last 200 are dropped. `doing` is called on that thread.
    """

    def __init__(
        self,
        redis: BlockingRedis,
        *,
        process_id: str,
        kind: ProcessKind,
        name: str,
        restarts: int | None,
        logs: RecentLogs,
        doing: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._process_id = process_id
        self._kind: ProcessKind = kind
        self._name = name
        self._restarts = restarts
        self._logs = logs
        self._doing = doing
        self._clock = clock
        self._started_at = clock()
        self._last_use = (self._started_at, time.process_time())
        self._unsent: list[LogLine] = []
        self._beat_at = 0.0
        self._is_heard = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._tell_all, name="process-beacon", daemon=True)

    def __enter__(self) -> ProcessBeacon:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(timeout_seconds=2.0)

    def stop(self, *, timeout_seconds: float) -> None:
        """Send the last lines, say that the process ends, and end the thread; gives up after `timeout_seconds`."""
        self._stopping.set()
        self._thread.join(timeout_seconds)

    def beat(self, *, has_ended: bool = False) -> None:
        """Give a sign of life now. Errors of Redis pass through."""
        seconds, microseconds = self._redis.time()
        now = seconds + microseconds / 1e6
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(keys.process(self._process_id), _encode(self._look(has_ended=has_ended)), ex=LIFE_SECONDS)
        pipe.expire(keys.process_log(self._process_id), LIFE_SECONDS)
        pipe.zadd(keys.processes(), {self._process_id: now})
        pipe.zremrangebyscore(keys.processes(), 0, now - LIFE_SECONDS)
        pipe.execute()

    def send_log(self) -> None:
        """Send the lines that were not sent yet. Errors of Redis pass through, and lose none of the last 200."""
        self._unsent = [*self._unsent, *self._logs.take()][-NUM_LINES:]
        if self._unsent:
            write_lines(self._redis, self._process_id, self._unsent)
            self._unsent = []

    def _tell_all(self) -> None:
        self._tell(beats=True)
        while not self._stopping.wait(_TICK_SECONDS):
            self._tell(beats=self._clock() - self._beat_at >= BEAT_SECONDS)
        self._tell(beats=True, has_ended=True)

    def _tell(self, *, beats: bool, has_ended: bool = False) -> None:
        try:
            if beats:
                self._beat_at = self._clock()
                self.beat(has_ended=has_ended)
            self.send_log()
            self._is_heard = True
        except (RedisError, OSError) as error:
            if self._is_heard:
                logger.warning("cannot tell how this process does: %s", error)
            self._is_heard = False
        except Exception:
            logger.exception("cannot tell how this process does")

    def _look(self, *, has_ended: bool) -> ProcessRecord:
        now, used = self._clock(), time.process_time()
        elapsed, self._last_use = (now - self._last_use[0], used - self._last_use[1]), (now, used)
        return ProcessRecord(
            process_id=self._process_id,
            kind=self._kind,
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=software_version(),
            uptime_seconds=now - self._started_at,
            restarts=self._restarts,
            rss_bytes=resident_bytes(),
            cpu_ratio=elapsed[1] / elapsed[0] if elapsed[0] > 0 else 0.0,
            doing="" if has_ended else self._doing()[:_LONGEST_DOING],
            has_ended=has_ended,
        )


async def read_processes(redis: Redis) -> list[SeenProcess]:
    """The processes of the last hour, by kind, name and start. Errors of Redis pass through."""
    pipe = redis.pipeline(transaction=False)
    pipe.time()
    pipe.zrange(keys.processes(), 0, -1, withscores=True)
    (seconds, microseconds), scored = await pipe.execute()
    now = seconds + microseconds / 1e6
    seen_at = {raw.decode(): score for raw, score in scored if now - score < LIFE_SECONDS}
    if not seen_at:
        return []
    stored = cast("list[bytes | None]", await redis.mget([*map(keys.process, seen_at)]))
    records = zip(seen_at.values(), (decode_or_none(_decode, each) for each in stored), strict=True)
    found = [SeenProcess(record, max(0.0, now - at)) for at, record in records if record is not None]
    return sorted(found, key=_rank)


async def read_process(redis: Redis, process_id: str) -> SeenProcess | None:
    """One process of the last hour; None where there is none of this id. Errors of Redis pass through."""
    found = [process for process in await read_processes(redis) if process.record.process_id == process_id]
    return found[0] if found else None


def _rank(seen: SeenProcess) -> tuple[int, str, float]:
    record = seen.record
    return _KINDS.index(record.kind), record.name, -(record.uptime_seconds + seen.seconds_ago)


_KINDS: tuple[ProcessKind, ...] = ("web", "engine", "monitor", "jobs")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ProcessRecord).decode
