"""Checks of open pages: what they cost while the database is away, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from dashboard.rechecks import Rechecks
from dashboard.sessions import SignedOut

PATIENCE_SECONDS = 20.0


class Database:
    """Answers a check, or hangs, on the check's thread."""

    def __init__(self) -> None:
        self.is_back = threading.Event()
        self.threads: list[str] = []

    def check(self) -> str:
        self.threads.append(threading.current_thread().name)
        self.is_back.wait()
        return "ann"


async def test_a_hanging_database_keeps_two_threads_however_many_pages_ask(caplog: pytest.LogCaptureFixture) -> None:
    rechecks, database = Rechecks(max_concurrent=2), Database()
    caplog.set_level(logging.INFO, "dashboard.rechecks")
    try:
        for _ in range(2):
            found = await asyncio.gather(*(rechecks.run(database.check, within_seconds=0.02) for _ in range(50)))
            assert found == [None] * 50
        assert len(set(database.threads)) == len(database.threads) == 2
        assert [record.getMessage().endswith("no answer within 0.02 s") for record in caplog.records] == [True]
    finally:
        database.is_back.set()
    assert await rechecks.run(database.check, within_seconds=PATIENCE_SECONDS) == "ann"
    assert len(database.threads) == 3, "what nobody waited for any more was not asked"
    assert caplog.messages[1:] == ["Open pages can be checked again"]


async def test_a_failing_database_is_logged_once_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    rechecks = Rechecks()

    def fail() -> None:
        raise OSError("no database")

    for _ in range(3):
        assert await rechecks.run(fail, within_seconds=PATIENCE_SECONDS) is None
    assert caplog.messages == ["Open pages cannot be checked, and stay open: OSError: no database"]


async def test_a_session_that_ended_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    def sign_out() -> None:
        raise SignedOut

    with pytest.raises(SignedOut):
        await Rechecks().run(sign_out, within_seconds=PATIENCE_SECONDS)
    assert caplog.messages == []


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 5.0), (0.5, 7.5), (1.0, 10.0)])
def test_pauses_differ_and_are_never_longer_than_asked_for(chance: float, seconds: float) -> None:
    assert Rechecks(chance=lambda: chance).pause(10.0) == seconds
