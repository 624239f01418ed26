"""What happens to a pool and is marked in its charts: told to the consoles with the next frame, stored by a job."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.telemetry import chronicle

EventKind = Literal[
    "engine_joined",
    "engine_left",
    "engine_lost",
    "monitor_took_over",
    "redis_restarted",
    "alert",
    "alert_over",
    "guardrail",
    "canary",
]

SHOWN_SECONDS = 60.0
"""How long a frame tells of an event; who looks later reads what is stored."""
MOST_SHOWN = 20
_LIFE_SECONDS = 300
_MAX_SUBJECT, _MAX_TEXT = 200, 500


class PoolEventInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `at` is Redis's time in unix seconds; `subject` names the engine, rule or version that it is about.
    `event_id` tells one from its repetition."""

    event_id: str
    pool: PoolName
    at: float
    kind: EventKind
    subject: str = ""
    text: str = ""


class EventEntry(msgspec.Struct, frozen=True, tag="event"):
    """An event in the chronicle."""

    event: PoolEventInfo


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PoolEventInfo).decode


def event_of(
    pool: PoolName, kind: EventKind, *, at: float, subject: str = "", text: str = "", occurrence: str = ""
) -> PoolEventInfo:
    """An event whose id is the same whenever, and by whomever, it is told with this `occurrence`.

    Texts are cut to what is stored, and lose what PostgreSQL stores in none.
    """
    digest = hashlib.sha256("\x1f".join((pool, kind, subject, occurrence)).encode("utf-8", "replace")).hexdigest()
    return PoolEventInfo(
        event_id=digest[:32],
        pool=pool,
        at=at,
        kind=kind,
        subject=_storable(subject, _MAX_SUBJECT),
        text=_storable(text, _MAX_TEXT),
    )


def note_event(pipe: Any, event: PoolEventInfo) -> None:
    """Queue the telling of an event in a Redis pipeline, async or blocking. Safe to repeat."""
    chronicle.append(pipe, _encode(EventEntry(event)))
    pipe.xadd(keys.events(event.pool), {keys.FIELD: _encode(event)}, maxlen=2 * MOST_SHOWN, approximate=False)
    pipe.expire(keys.events(event.pool), _LIFE_SECONDS)


async def read_newest_events(redis: Redis, pool: PoolName, *, now: float) -> list[PoolEventInfo]:
    """Those of the last minute, newest first, each once. Errors of Redis pass through."""
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await redis.xrange(keys.events(pool)))
    told = (decode_or_none(_decode, fields.get(keys.FIELD)) for _, fields in entries)
    return _newest([event for event in told if event is not None and event.at > now - SHOWN_SECONDS])


def _newest(events: Sequence[PoolEventInfo]) -> list[PoolEventInfo]:
    once = {event.event_id: event for event in reversed(events)}
    return sorted(once.values(), key=lambda event: event.at, reverse=True)[:MOST_SHOWN]


def _storable(text: str, longest: int) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:longest]
