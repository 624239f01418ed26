"""The jobs process."""

from __future__ import annotations

from serving.config import jobs


def test_the_beat_sleeps_no_longer_than_a_stop_may_wait_for_it() -> None:
    scheduler = jobs._beat().service.get_scheduler(lazy=True)
    assert scheduler.max_interval == jobs._BEAT_SECONDS < 1
