"""A library that says one thing again and again is heard once."""

from __future__ import annotations

import logging

import pytest
from celery.beat import logger as beat_logger

from serving.config.quiet_logs import Unrepeated
from tests.telemetry.conftest import Clock


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("psycopg.pool", logging.WARNING, __file__, 1, text, args, None)


def test_a_line_that_repeats_is_said_once_until_it_was_silent_for_a_minute() -> None:
    clock = Clock()
    unrepeated = Unrepeated(clock)

    def passes(text: str, *args: object, after: float) -> bool:
        clock.now += after
        return unrepeated.filter(record(text, *args))

    assert passes("no %s", "route", after=0)
    assert [passes("no %s", "route", after=50) for _ in range(3)] == [False] * 3
    assert passes("refused", after=1)
    assert passes("no %s", "route", after=1)
    assert passes("no %s", "route", after=60)


def test_what_passes_is_one_line() -> None:
    said = record("error in %r: refused\n\tIs the server running?", "pool-1")
    assert Unrepeated().filter(said)
    assert said.getMessage() == "error in 'pool-1': refused"


def test_a_beat_that_can_send_nothing_says_so_in_one_line_for_all_jobs(caplog: pytest.LogCaptureFixture) -> None:
    assert any(isinstance(each, Unrepeated) for each in beat_logger.filters)
    for job in ("drain", "settle", "drain"):
        try:
            raise ConnectionError(f"{job}: refused")
        except ConnectionError as error:
            beat_logger.error("Message Error: %s\n%s", error, ["frame"], exc_info=True)
    assert [(record.getMessage(), record.exc_info) for record in caplog.records] == [
        ("Message Error: drain: refused", None)
    ]
