"""Which processes there are: each tells of itself, and those that went stay known for an hour."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.telemetry.processes import LOST_SECONDS, ProcessBeacon, SeenProcess, read_process, read_processes
from serving.telemetry.recent_logs import RecentLogs, read_lines
from serving.version import software_version


def beacon_of(redis: BlockingRedis, name: str, **options: Any) -> ProcessBeacon:
    given: dict[str, Any] = {"kind": "web", "restarts": 2, "logs": RecentLogs(), "doing": lambda: "3 requests"}
    return ProcessBeacon(redis, process_id=f"id-{name}", name=name, **{**given, **options})


@pytest.fixture
def blocking(valkey: str) -> Iterator[BlockingRedis]:
    with BlockingRedis.from_url(valkey) as redis:
        yield redis


async def seen(url: str) -> list[SeenProcess]:
    async with Redis.from_url(url) as redis:
        return await read_processes(redis)


async def test_a_process_tells_what_it_is_and_does(blocking: BlockingRedis, valkey: str) -> None:
    beacon_of(blocking, "web").beat()
    (process,) = await seen(valkey)
    record = process.record
    assert (record.kind, record.name, record.pid, record.version) == ("web", "web", os.getpid(), software_version())
    assert (record.restarts, record.doing, process.state) == (2, "3 requests", "up")
    assert record.rss_bytes > 2**20
    assert record.cpu_ratio >= 0
    async with Redis.from_url(valkey) as redis:
        assert await read_process(redis, "id-web") is not None
        assert await read_process(redis, "another") is None


async def test_those_that_went_stay_known_for_an_hour_with_how_they_went(blocking: BlockingRedis, valkey: str) -> None:
    for name in ("alive", "ended", "killed", "older"):
        beacon_of(blocking, name).beat(has_ended=name == "ended")
    seconds, _ = blocking.time()
    blocking.zadd(keys.processes(), {"id-killed": seconds - LOST_SECONDS - 1, "id-older": seconds - 3601})
    states = {process.record.name: process.state for process in await seen(valkey)}
    assert states == {"alive": "up", "ended": "ended", "killed": "lost"}
    beacon_of(blocking, "alive").beat()
    assert blocking.zscore(keys.processes(), "id-older") is None
    assert 0 < blocking.ttl(keys.process("id-killed")) <= 3600


async def test_kinds_come_in_their_order_and_what_is_not_understood_is_left_out(
    blocking: BlockingRedis, valkey: str
) -> None:
    for kind, name in (("jobs", "jobs"), ("engine", "b"), ("web", "web"), ("engine", "a")):
        beacon_of(blocking, name, kind=kind).beat()
    blocking.set(keys.process("id-strange"), b"of another version")
    blocking.zadd(keys.processes(), {"id-strange": blocking.time()[0], "id-without-record": blocking.time()[0]})
    assert [process.record.name for process in await seen(valkey)] == ["web", "a", "b", "jobs"]


@contextmanager
def attached(logs: RecentLogs) -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.processes")
    logger.setLevel(logging.INFO)
    logger.addHandler(logs)
    try:
        yield logger
    finally:
        logger.removeHandler(logs)


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


async def test_a_beacon_tells_and_sends_the_log_from_a_thread_and_says_when_it_ends(
    blocking: BlockingRedis, valkey: str
) -> None:
    logs = RecentLogs()
    with attached(logs) as logger, beacon_of(blocking, "web", logs=logs):
        wait_until(lambda: blocking.exists(keys.process("id-web")))
        logger.info("works")
        wait_until(lambda: blocking.llen(keys.process_log("id-web")))
        assert [process.state for process in await seen(valkey)] == ["up"]
        logger.info("goes")
    assert [process.state for process in await seen(valkey)] == ["ended"]
    async with Redis.from_url(valkey) as redis:
        assert [line.text for line in await read_lines(redis, "id-web")] == ["goes", "works"]
    assert "process-beacon" not in {thread.name for thread in threading.enumerate()}


def test_lines_that_could_not_be_sent_are_sent_later(blocking: BlockingRedis) -> None:
    logs = RecentLogs()
    beacon = beacon_of(blocking, "web", logs=logs)
    with attached(logs) as logger:
        logger.info("in the dark")
    blocking.set(keys.process_log("id-web"), "what takes no lines")
    with pytest.raises(RedisError):
        beacon.send_log()
    blocking.delete(keys.process_log("id-web"))
    beacon.send_log()
    assert blocking.llen(keys.process_log("id-web")) == 1
