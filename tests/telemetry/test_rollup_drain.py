"""From the chronicle to the database: each entry once, whatever happens to the job, and sums that are always true."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.telemetry import chronicle, rollup_drain
from serving.telemetry.events import event_of, note_event
from serving.telemetry.models import PoolEvent, Rollup
from serving.telemetry.rollup_drain import drain_chronicle, prune_rollups
from serving.telemetry.rollups import RollupContent, StretchEntry, decode_content, encode_content, encode_entry
from tests.telemetry.conftest import POOL
from tests.telemetry.test_rollups import stretch

pytestmark = pytest.mark.django_db

HOUR = 1_750_003_200
"""A whole hour."""


@pytest.fixture
def blocking_redis(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as client:
        yield client


def write(redis: Redis, starts_at: int, *ttfts: float, pool: PoolName = POOL, **counts: int) -> None:
    pipe = redis.pipeline()
    entry = StretchEntry(pool=pool, starts_at=starts_at, content=stretch(*ttfts, **counts))
    chronicle.append(pipe, encode_entry(entry))
    pipe.execute()


def stored(seconds: int, pool: PoolName = POOL) -> dict[int, RollupContent]:
    rows = Rollup.objects.filter(seconds=seconds, pool=pool)
    return {int(row.starts_at.timestamp()): decode_content(bytes(row.content)) for row in rows}


def counts_of(seconds: int) -> dict[int, tuple[int, int]]:
    """By beginning: how many durations, and how many were submitted."""
    return {
        at: (content.intervals.ttft.count, content.counts.get("submitted", 0))
        for at, content in stored(seconds).items()
    }


def test_stretches_are_stored_and_summed_up_to_an_hour(blocking_redis: Redis) -> None:
    for second in range(0, 3660, 10):
        write(blocking_redis, HOUR + second, 0.1, 0.2, submitted=2)
    assert drain_chronicle(blocking_redis) == 366
    assert blocking_redis.xlen(keys.chronicle()) == 0
    assert len(stored(10)) == 366
    assert counts_of(60) == {HOUR + second: (12, 12) for second in range(0, 3660, 60)}
    assert counts_of(600) == {HOUR + second: (120, 120) for second in range(0, 3600, 600)} | {HOUR + 3600: (12, 12)}
    assert counts_of(3600) == {HOUR: (720, 720), HOUR + 3600: (12, 12)}
    assert stored(3600)[HOUR].seconds == 3600


def test_storing_again_changes_nothing(blocking_redis: Redis) -> None:
    for _ in range(2):
        write(blocking_redis, HOUR, 0.1, submitted=1)
        write(blocking_redis, HOUR + 10, 0.1, submitted=1)
        drain_chronicle(blocking_redis)
    assert counts_of(3600) == {HOUR: (2, 2)}
    write(blocking_redis, HOUR + 10, 0.1, 0.1, submitted=2)
    drain_chronicle(blocking_redis)
    assert [counts_of(seconds)[HOUR] for seconds in (10, 60, 600, 3600)] == [(1, 1), (3, 3), (3, 3), (3, 3)]


def test_what_comes_late_finds_its_place(blocking_redis: Redis) -> None:
    write(blocking_redis, HOUR + 50, 0.1)
    drain_chronicle(blocking_redis)
    write(blocking_redis, HOUR + 20, 0.2)
    drain_chronicle(blocking_redis)
    assert counts_of(60) == {HOUR: (2, 0)}
    assert stored(60)[HOUR].seconds == 20


def test_pools_are_apart(blocking_redis: Redis) -> None:
    write(blocking_redis, HOUR, 0.1)
    write(blocking_redis, HOUR, 0.1, 0.2, pool=PoolName("other"))
    drain_chronicle(blocking_redis)
    assert [stored(3600, PoolName(pool))[HOUR].intervals.ttft.count for pool in (POOL, "other")] == [1, 2]


def test_job_that_is_killed_between_storing_and_deleting_loses_and_doubles_nothing(
    blocking_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(blocking_redis, HOUR, 0.1, submitted=1)
    note(blocking_redis, "engine-1")

    def die(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(blocking_redis, "xdel", die)
        with pytest.raises(SystemExit):
            drain_chronicle(blocking_redis)
    assert blocking_redis.xlen(keys.chronicle()) == 2
    assert drain_chronicle(blocking_redis) == 2
    assert (counts_of(3600), PoolEvent.objects.count()) == ({HOUR: (1, 1)}, 1)


def test_job_that_is_killed_while_storing_leaves_all_where_it_was(
    blocking_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(blocking_redis, HOUR, 0.1)

    def die(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(rollup_drain, "_store_events", die)
        with pytest.raises(SystemExit):
            drain_chronicle(blocking_redis)
    assert not Rollup.objects.exists()
    assert drain_chronicle(blocking_redis) == 1
    assert counts_of(10) == {HOUR: (1, 0)}


@pytest.mark.django_db(transaction=True)
def test_jobs_that_drain_at_once_store_each_entry_once(blocking_redis: Redis) -> None:
    for second in range(0, 4000, 10):
        write(blocking_redis, HOUR + second, 0.1, submitted=1)
    errors: list[BaseException] = []

    def drain() -> None:
        try:
            drain_chronicle(blocking_redis)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=drain) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert counts_of(3600) == {HOUR: (360, 360), HOUR + 3600: (40, 40)}


@pytest.mark.parametrize("content", [b"", b"\xc1", encode_entry({"type": "weather"})])
def test_entry_of_another_version_is_left_out_and_blocks_nothing(
    blocking_redis: Redis, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    blocking_redis.xadd(keys.chronicle(), {keys.FIELD: content})
    blocking_redis.xadd(keys.chronicle(), {b"else": b""})
    write(blocking_redis, HOUR + 3, 0.1)  # no beginning of ten seconds
    write(blocking_redis, HOUR, 0.1)
    assert drain_chronicle(blocking_redis) == 4
    assert counts_of(10) == {HOUR: (1, 0)}
    assert len(caplog.records) == 3


def note(redis: Redis, subject: str, *, at: float = HOUR, text: str = "it came") -> None:
    pipe = redis.pipeline()
    note_event(pipe, event_of(POOL, "engine_joined", at=at, subject=subject, text=text))
    pipe.execute()


def test_events_are_stored_once_as_they_were_first_told(blocking_redis: Redis) -> None:
    for at in (HOUR, HOUR + 7):
        note(blocking_redis, "engine-1", at=at)
    note(blocking_redis, "engine-2")
    drain_chronicle(blocking_redis)
    note(blocking_redis, "engine-1", at=HOUR + 9)
    drain_chronicle(blocking_redis)
    rows = PoolEvent.objects.order_by("subject").values_list("subject", "kind", "pool", "at")
    time = datetime.datetime.fromtimestamp(HOUR, tz=datetime.UTC)
    assert list(rows) == [(name, "engine_joined", POOL, time) for name in ("engine-1", "engine-2")]


def test_event_of_any_text_can_be_stored(blocking_redis: Redis) -> None:
    note(blocking_redis, "e\0" * 300, text="\ud800 and \0" + "é" * 1000)
    drain_chronicle(blocking_redis)
    event = PoolEvent.objects.get()
    assert (len(event.subject), len(event.text)) == (200, 500)
    assert "\0" not in event.subject + event.text


def test_each_kind_of_stretch_goes_once_it_is_too_old_and_no_part_of_an_hour_before_the_rest(
    blocking_redis: Redis,
) -> None:
    now = int(timezone.now().timestamp())
    hour = now - now % 3600
    ages = {10: 6, 60: 72, 600: 720, 3600: 9600}
    for seconds, hours in ages.items():
        for back in (hours - 1, hours + 2):
            make(seconds, hour - back * 3600)
            make(seconds, hour - back * 3600 + 1800)
    note(blocking_redis, "old", at=now - 401 * 86_400)
    note(blocking_redis, "young", at=now - 399 * 86_400)
    assert prune_rollups(blocking_redis) == 9
    for seconds, hours in ages.items():
        assert sorted(stored(seconds)) == [hour - (hours - 1) * 3600, hour - (hours - 1) * 3600 + 1800]
    assert [event.subject for event in PoolEvent.objects.all()] == ["young"]


def make(seconds: int, starts_at: int) -> None:
    time = datetime.datetime.fromtimestamp(starts_at, tz=datetime.UTC)
    content = encode_content(stretch(0.1))
    Rollup.objects.create(pool=POOL, seconds=seconds, starts_at=time, content=content)


def test_what_waits_is_stored_before_anything_goes(blocking_redis: Redis) -> None:
    now = int(timezone.now().timestamp())
    old = now - now % 3600 - 30 * 3600
    write(blocking_redis, old, 0.1, submitted=1)
    write(blocking_redis, old + 10, 0.1, submitted=1)
    prune_rollups(blocking_redis)
    assert (stored(10), counts_of(60)) == ({}, {old: (2, 2)})
