"""From the chronicle in Redis to the database: a job's part. Blocking.

An entry leaves Redis once the database has it for good, and storing it again changes nothing: so nothing is lost, and
nothing counted twice, wherever a job is killed. Longer stretches are summed from the shorter ones that are stored, each
time anew, as soon as one of those has come: they are true at every moment, and late ones find their place.

Of two jobs at once, both begin with the oldest entry: on PostgreSQL the second waits for the first one's row, and sums
up what both have stored.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import msgspec
from django.db import models, transaction
from django.utils import timezone
from redis import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.telemetry.events import EventEntry, PoolEventInfo
from serving.telemetry.models import PoolEvent, Rollup
from serving.telemetry.retention import kept_for
from serving.telemetry.rollups import (
    RESOLUTIONS,
    STRETCH_SECONDS,
    RollupContent,
    StretchEntry,
    decode_content,
    encode_content,
    merge,
)

logger = logging.getLogger(__name__)

_READ_COUNT = 200
_PRUNED_AT_ONCE = 2_000

_decode = msgspec.msgpack.Decoder(StretchEntry | EventEntry).decode
_Stretches = dict[tuple[PoolName, int], RollupContent]
"""By pool and beginning, in unix seconds."""


def drain_chronicle(redis: Redis) -> int:
    """Store all that the chronicle holds; gives how many entries there were. Errors of Redis and database pass
    through, and leave what was not stored where it is."""
    num_entries = 0
    while True:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", redis.xrange(keys.chronicle(), count=_READ_COUNT))
        if not entries:
            return num_entries
        _store([fields.get(keys.FIELD) for _, fields in entries])
        redis.xdel(keys.chronicle(), *[entry_id for entry_id, _ in entries])
        num_entries += len(entries)


def prune_rollups(redis: Redis) -> int:
    """Delete what is older than it is kept, once all that waits is stored; gives how many rows went.

    Always what makes up a whole stretch of the longest kind: no sum is ever made anew of a part.
    """
    drain_chronicle(redis)
    now = timezone.now()
    num_deleted = 0
    for seconds in RESOLUTIONS:
        oldest = _beginning((now - kept_for(seconds)).timestamp(), RESOLUTIONS[-1])
        num_deleted += _delete(Rollup.objects.filter(seconds=seconds, starts_at__lt=_time(oldest)))
    num_deleted += _delete(PoolEvent.objects.filter(at__lt=now - kept_for(RESOLUTIONS[-1])))
    return num_deleted


def _store(contents: Iterable[bytes | None]) -> None:
    stretches: _Stretches = {}
    events: list[PoolEventInfo] = []
    for content in contents:
        entry = decode_or_none(_decode, content)
        match entry:
            case StretchEntry() if entry.starts_at % STRETCH_SECONDS == 0:
                stretches[entry.pool, entry.starts_at] = entry.content
            case EventEntry():
                events.append(entry.event)
            case _:
                logger.warning("an entry of the chronicle is not understood by this version and left out")
    with transaction.atomic():
        _store_stretches(STRETCH_SECONDS, stretches)
        for finer, coarser in pairwise(RESOLUTIONS):
            stretches = _sum_up(stretches, finer=finer, coarser=coarser)
            _store_stretches(coarser, stretches)
        _store_events(events)


def _store_stretches(seconds: int, stretches: _Stretches) -> None:
    """Write them, in one order everywhere so that nobody waits for each other; what was there is replaced."""
    Rollup.objects.bulk_create(
        [
            Rollup(pool=pool, seconds=seconds, starts_at=_time(starts_at), content=encode_content(content))
            for (pool, starts_at), content in sorted(stretches.items(), key=lambda item: item[0])
        ],
        update_conflicts=True,
        unique_fields=("pool", "seconds", "starts_at"),
        update_fields=("content",),
    )


def _sum_up(stretches: _Stretches, *, finer: int, coarser: int) -> _Stretches:
    """The longer stretches in which these lie, of all shorter ones that are stored."""
    touched = sorted({(pool, _beginning(starts_at, coarser)) for pool, starts_at in stretches})
    return {
        (pool, starts_at): merge(contents)
        for pool, starts_at in touched
        if (contents := _read_contents(pool, finer, since=starts_at, until=starts_at + coarser))
    }


def _read_contents(pool: PoolName, seconds: int, *, since: int, until: int) -> list[RollupContent]:
    rows = Rollup.objects.filter(
        pool=pool, seconds=seconds, starts_at__gte=_time(since), starts_at__lt=_time(until)
    ).order_by("starts_at")
    contents = (decode_or_none(decode_content, bytes(raw)) for raw in rows.values_list("content", flat=True))
    return [content for content in contents if content is not None]


def _store_events(events: Sequence[PoolEventInfo]) -> None:
    PoolEvent.objects.bulk_create(
        [
            PoolEvent(
                event_id=event.event_id,
                pool=event.pool,
                at=_time(event.at),
                kind=event.kind,
                subject=event.subject,
                text=event.text,
            )
            for event in sorted(events, key=lambda event: event.event_id)
        ],
        ignore_conflicts=True,
    )


def _delete(rows: models.QuerySet[Rollup] | models.QuerySet[PoolEvent]) -> int:
    """In pieces: nobody who writes waits for long."""
    num_deleted = 0
    while ids := list(rows.values_list("pk", flat=True)[:_PRUNED_AT_ONCE]):
        num_deleted += rows.model.objects.filter(pk__in=ids).delete()[0]
    return num_deleted


def _beginning(unix_seconds: float, length: int) -> int:
    whole = int(unix_seconds)
    return whole - whole % length


def _time(unix_seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_seconds, tz=datetime.UTC)
