"""The history of a pool: what a console that opens, or comes back, is given."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.telemetry import history
from serving.telemetry.feed import read_history
from serving.telemetry.frames import Point
from serving.telemetry.history import KEPT_SECONDS, add_point
from tests.telemetry.conftest import POOL


def point_at(unix_seconds: float) -> Point:
    return Point(unix_seconds, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 1, [[[None, 0.1, 0.2, 0.3]] * 4] * 4)


class AtTime:
    """A pipeline whose entries are written as of `unix_seconds`."""

    def __init__(self, pipe: Any, unix_seconds: float) -> None:
        self._pipe = pipe
        self._entry_id = f"{int(unix_seconds * 1000)}-0"

    def xadd(self, *args: Any, **options: Any) -> None:
        self._pipe.xadd(*args, id=self._entry_id, **options)

    def expire(self, *args: Any) -> None:
        self._pipe.expire(*args)


async def write(redis: Redis, *points: Point) -> None:
    pipe = redis.pipeline(transaction=False)
    for point in points:
        add_point(pipe, POOL, point)
    await pipe.execute()


async def times(redis: Redis, *, since: float | None) -> list[float]:
    return [msgspec.json.decode(row, type=Point).unix_seconds for row in await read_history(redis, POOL, since=since)]


async def now(redis: Redis) -> float:
    seconds, _ = await redis.time()
    return float(seconds)


async def test_gives_what_is_newer_oldest_first(redis: Redis) -> None:
    seconds = await now(redis)
    await write(redis, *(point_at(seconds - 10 + age) for age in range(10)))
    assert await times(redis, since=None) == [seconds - 10 + age for age in range(10)]
    assert await times(redis, since=seconds - 4) == [seconds - 3, seconds - 2, seconds - 1]
    for since in (seconds - 1, seconds + 1e6, 1e300):
        assert await times(redis, since=since) == []
    assert len(await times(redis, since=-1e300)) == 10


async def test_rows_are_the_json_of_points_as_they_were_written(redis: Redis) -> None:
    point = point_at(await now(redis))
    await write(redis, point)
    assert await read_history(redis, POOL, since=None) == [msgspec.json.encode(point)]


async def test_keeps_a_quarter_of_an_hour_and_no_more(redis: Redis) -> None:
    seconds = await now(redis)
    await write(redis, *(point_at(seconds - 0.001 * age) for age in range(KEPT_SECONDS + 60)))
    assert await redis.xlen(keys.history(POOL)) == KEPT_SECONDS
    assert len(await times(redis, since=None)) == KEPT_SECONDS


async def test_what_is_older_than_a_quarter_of_an_hour_is_left_out(redis: Redis) -> None:
    seconds = await now(redis)
    for age in (KEPT_SECONDS + 100, KEPT_SECONDS - 100):
        content = msgspec.json.encode(point_at(seconds - age))
        await redis.xadd(keys.history(POOL), {keys.FIELD: content}, id=f"{int(seconds - age) * 1000}-0")
    assert await times(redis, since=None) == [seconds - KEPT_SECONDS + 100]
    assert await times(redis, since=seconds - 10_000) == [seconds - KEPT_SECONDS + 100]


async def test_history_that_is_gone_is_empty_and_begins_anew(redis: Redis) -> None:
    seconds = await now(redis)
    await write(redis, point_at(seconds - 1))
    await redis.flushall()
    assert await read_history(redis, POOL, since=None) == []
    await write(redis, point_at(seconds))
    assert await times(redis, since=None) == [seconds]


async def test_what_it_does_not_understand_is_left_out(redis: Redis) -> None:
    seconds = await now(redis)
    for content in (b"", b"{}", b"[1,2]", b"\xc1"):
        await redis.xadd(keys.history(POOL), {keys.FIELD: content})
    await redis.xadd(keys.history(POOL), {b"other": b"field"})
    await write(redis, point_at(seconds))
    assert await times(redis, since=None) == [seconds]


async def test_what_another_version_wrote_and_this_one_understands_is_given(redis: Redis) -> None:
    seconds = await now(redis)
    for age, layout in ((3, {}), (2, {b"l": b"another"})):
        fields = {keys.FIELD: msgspec.json.encode(point_at(seconds - age)), **layout}
        await redis.xadd(keys.history(POOL), fields)
    await write(redis, point_at(seconds - 1))
    await redis.xadd(keys.history(POOL), {keys.FIELD: b"{}", b"l": b"another"})
    assert await times(redis, since=None) == [seconds - 3, seconds - 2, seconds - 1]


@pytest.mark.parametrize("since", [None, 500.5])
async def test_few_points_are_decoded_however_many_are_given(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, since: float | None
) -> None:
    seconds = await now(redis)
    pipe = redis.pipeline(transaction=False)
    for age in range(KEPT_SECONDS - 10, 0, -1):
        history.add_point(AtTime(pipe, seconds - age), POOL, point_at(seconds - age - 0.25))
    await pipe.execute()
    decoded: list[bytes] = []
    decode = history._decode
    monkeypatch.setattr(history, "_decode", lambda row: decoded.append(row) or decode(row))
    rows = await read_history(redis, POOL, since=None if since is None else seconds - since)
    assert len(rows) == (KEPT_SECONDS - 10 if since is None else 500)
    assert len(decoded) <= 3


async def test_history_of_a_pool_that_nobody_monitors_goes_by_itself(redis: Redis) -> None:
    await write(redis, point_at(await now(redis)))
    assert KEPT_SECONDS < await redis.ttl(keys.history(POOL)) <= 2 * 3600
