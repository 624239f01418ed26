"""The last lines of a process's log: kept, bounded, and without secrets."""

from __future__ import annotations

import logging
import sys

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts import keys
from serving.telemetry.recent_logs import NUM_LINES, RecentLogs, read_lines, write_lines

SECRET = "s" * 43
KEY = f"fp-0123456789ab-{SECRET}"


@pytest.fixture
def logs() -> RecentLogs:
    return RecentLogs()


def log(logs: RecentLogs, text: str, *args: object, level: int = logging.INFO, failing: bool = False) -> None:
    error = sys.exc_info() if failing else None
    logs.handle(logging.LogRecord("serving.some", level, __file__, 1, text, args, error))


def test_lines_come_in_order_once_and_numbered(logs: RecentLogs) -> None:
    log(logs, "the %s", "first")
    log(logs, "the second", level=logging.ERROR)
    assert [(line.number, line.level, line.logger, line.text) for line in logs.take()] == [
        (1, logging.INFO, "serving.some", "the first"),
        (2, logging.ERROR, "serving.some", "the second"),
    ]
    assert logs.take() == []


def test_of_too_many_lines_the_newest_are_kept(logs: RecentLogs) -> None:
    for number in range(3 * NUM_LINES):
        log(logs, "%d", number)
    assert [line.text for line in logs.take()] == [str(number) for number in range(2 * NUM_LINES, 3 * NUM_LINES)]


def test_no_key_and_no_password_is_in_any_line(logs: RecentLogs) -> None:
    log(logs, "asked with %s", KEY)
    log(logs, "cannot reach redis://user:pass-word@host:6379/0")
    log(logs, "cannot reach redis://:pass@pass-word@host:6379/0 nor mail a@b")
    try:
        raise ValueError(f"no such key: {KEY}")
    except ValueError:
        log(logs, "tripped", failing=True)
    # At any place of a text that is too long to be kept whole.
    for length in range(950, 1010):
        log(logs, "x" * length + KEY + "y" * 40_000)
    log(logs, "y" * 40_000 + KEY)
    lines = logs.take()
    assert len(lines) == 65
    assert not [line for line in lines if "sssss" in line.text or "pass-word" in line.text]
    assert [line.text for line in lines[:2]] == ["asked with fp-0123456789ab-…", "cannot reach redis://…@host:6379/0"]
    assert lines[2].text == "cannot reach redis://…@host:6379/0 nor mail a@b"
    assert "ValueError: no such key: fp-0123456789ab-…" in lines[3].text


def test_a_long_text_keeps_its_beginning_and_its_end(logs: RecentLogs) -> None:
    log(logs, "begin " + "x" * 500_000 + " end")
    (line,) = logs.take()
    assert line.text.startswith("begin ")
    assert line.text.endswith(" end")
    assert len(line.text) < 4_100


def test_what_no_page_can_show_is_replaced(logs: RecentLogs) -> None:
    log(logs, "a\0b\x1b[31m\ud800\tc\nd")
    log(logs, "%d of what is none", "text")
    (line,) = logs.take()
    assert line.text == "a\ufffdb\ufffd[31m?\tc\nd"


async def test_the_last_lines_are_read_newest_first_by_level(logs: RecentLogs, valkey: str) -> None:
    with BlockingRedis.from_url(valkey) as redis:
        for number in range(NUM_LINES + 20):
            log(logs, "%d", number, level=logging.WARNING if number % 100 == 0 else logging.INFO)
            write_lines(redis, "p", logs.take())
        assert redis.llen(keys.process_log("p")) == NUM_LINES
        assert 0 < redis.ttl(keys.process_log("p")) <= 3600
        redis.rpush(keys.process_log("p"), b"of another version")
    async with Redis.from_url(valkey) as redis:
        texts = [line.text for line in await read_lines(redis, "p")]
        assert texts == [str(number) for number in reversed(range(20, NUM_LINES + 20))]
        warnings = [line.text for line in await read_lines(redis, "p", level=logging.WARNING)]
        assert warnings == ["200", "100"]
        assert await read_lines(redis, "another") == []
