"""Events: told to whoever watches, and each but once."""

from __future__ import annotations

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.telemetry.events import MOST_SHOWN, EventEntry, event_of, note_event, read_newest_events
from tests.telemetry.chronicles import read_chronicle
from tests.telemetry.conftest import POOL

NOW = 1_750_000_000.0


async def note(redis: Redis, subject: str, *, at: float = NOW, pool: PoolName = POOL) -> None:
    pipe = redis.pipeline()
    note_event(pipe, event_of(pool, "canary", at=at, subject=subject, occurrence="1"))
    await pipe.execute()


def test_one_event_has_one_id_whenever_it_is_told() -> None:
    first = event_of(POOL, "alert", at=NOW, subject="rule 1", text="a", occurrence="7")
    again = event_of(POOL, "alert", at=NOW + 5, subject="rule 1", text="b", occurrence="7")
    assert first.event_id == again.event_id
    others = [
        event_of(PoolName("other"), "alert", at=NOW, subject="rule 1", occurrence="7"),
        event_of(POOL, "alert_over", at=NOW, subject="rule 1", occurrence="7"),
        event_of(POOL, "alert", at=NOW, subject="rule 2", occurrence="7"),
        event_of(POOL, "alert", at=NOW, subject="rule 1", occurrence="8"),
    ]
    assert len({event.event_id for event in [first, *others]}) == 5


async def test_event_is_shown_for_a_minute_and_waits_to_be_stored(redis: Redis) -> None:
    await note(redis, "version 3")
    await note(redis, "version 4", pool=PoolName("other"))
    shown = await read_newest_events(redis, POOL, now=NOW + 59)
    assert [(event.kind, event.subject) for event in shown] == [("canary", "version 3")]
    assert await read_newest_events(redis, POOL, now=NOW + 61) == []
    entries = [entry for entry in await read_chronicle(redis) if isinstance(entry, EventEntry)]
    assert [entry.event.subject for entry in entries] == ["version 3", "version 4"]


async def test_newest_are_shown_first_each_once_and_not_too_many(redis: Redis) -> None:
    for number in range(MOST_SHOWN + 5):
        await note(redis, f"version {number}", at=NOW + number)
    await note(redis, f"version {MOST_SHOWN}", at=NOW + 50)
    shown = await read_newest_events(redis, POOL, now=NOW + 50)
    assert [event.subject for event in shown] == [f"version {number}" for number in range(MOST_SHOWN + 4, 4, -1)]


async def test_event_of_another_version_is_left_out(redis: Redis) -> None:
    await redis.xadd(keys.events(POOL), {keys.FIELD: b"\xc1"})
    await redis.xadd(keys.events(POOL), {b"else": b""})
    await note(redis, "version 3")
    assert len(await read_newest_events(redis, POOL, now=NOW)) == 1
