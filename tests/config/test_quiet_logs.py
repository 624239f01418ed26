"""A library that says one thing again and again is heard once."""

from __future__ import annotations

import logging

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
