"""From the stream of requests that ended to the database, and out of it again once their time is over. Blocking."""

from __future__ import annotations

import datetime
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec
from django.db import DataError, IntegrityError, models, transaction
from redis import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.telemetry.models import RequestRecord
from serving.telemetry.request_log import LoggedRequest, decode_logged

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1_000
_CHARACTERS_AT_ONCE = 2 * 1024 * 1024
"""Of texts, in one transaction: SQLite has one writer, and others wait for it."""
_PIECES_A_RUN = 50
_PRUNED_AT_ONCE = 200
_MOST_COUNT = 2**31 - 1
_LARGEST_ID = 2**63 - 1
_FIELDS = {field.name: field for field in RequestRecord._meta.concrete_fields}
_UNSTORABLE = (DataError, IntegrityError, OverflowError, ValueError, TypeError)
"""What a database says of a row itself; all else says that it cannot be asked."""

Entry = tuple[bytes, dict[bytes, bytes]]


def drain_requests(redis: Redis, *, keeps_requests: bool = True, keeps_texts: bool = True) -> int:
    """Store what waits in the stream, or throw it away where nothing is kept; how many entries were taken from it.

    An entry is deleted once what was read with it is committed, and a request is stored once whatever is told twice:
    killed at any point, or run twice at once, it loses nothing and doubles nothing. What cannot be read or stored is
    dropped with a warning. Errors of Redis, and of a database that is out of reach, pass through, and leave the rest
    for the next time. Takes 50,000 at most, so that others have their turn.
    """
    num_taken = 0
    for _ in range(_PIECES_A_RUN):
        entries = cast("list[Entry]", redis.xrange(keys.request_log(), count=_ROWS_AT_ONCE))
        if not entries:
            break
        if keeps_requests:
            _store(_read(entries, with_texts=keeps_texts))
        redis.xdel(keys.request_log(), *[entry_id for entry_id, _ in entries])
        num_taken += len(entries)
    return num_taken


def prune_requests(
    *, now: datetime.datetime, requests_kept: datetime.timedelta, texts_kept: datetime.timedelta
) -> tuple[int, int]:
    """Delete requests that arrived longer ago than they are kept, and first the texts of those that stay; how many lost
    their texts and how many went. In pieces of 200: nobody waits long for the database meanwhile."""
    num_blanked = num_deleted = 0
    with_text = RequestRecord.objects.filter(prompt_text__isnull=False, arrived_at__lt=now - texts_kept)
    while ids := list(with_text.order_by("arrived_at").values_list("pk", flat=True)[:_PRUNED_AT_ONCE]):
        num_blanked += RequestRecord.objects.filter(pk__in=ids).update(prompt_text=None, output_text=None)
    old = RequestRecord.objects.filter(arrived_at__lt=now - requests_kept)
    while ids := list(old.order_by("arrived_at").values_list("pk", flat=True)[:_PRUNED_AT_ONCE]):
        deleted, _ = RequestRecord.objects.filter(pk__in=ids).delete()
        num_deleted += deleted
    return num_blanked, num_deleted


def _read(entries: Iterable[Entry], *, with_texts: bool) -> list[RequestRecord]:
    rows, num_unread = [], 0
    for _, fields in entries:
        logged = decode_or_none(decode_logged, fields.get(keys.FIELD))
        row = None if logged is None else _row_or_none(logged)
        if row is not None and not with_texts:
            row.prompt_text = row.output_text = None
        if row is None:
            num_unread += 1
        else:
            rows.append(row)
    if num_unread:
        logger.warning("%d requests are missing in the log: this version cannot read what was told of them", num_unread)
    return rows


def _store(rows: Sequence[RequestRecord]) -> None:
    for piece in _pieces(rows):
        try:
            _insert(piece)
        except _UNSTORABLE:
            for row in piece:
                _store_alone(row)


def _pieces(rows: Sequence[RequestRecord]) -> Iterator[list[RequestRecord]]:
    piece: list[RequestRecord] = []
    num_characters = 0
    for row in rows:
        size = len(row.prompt_text or "") + len(row.output_text or "")
        if piece and num_characters + size > _CHARACTERS_AT_ONCE:
            yield piece
            piece, num_characters = [], 0
        piece.append(row)
        num_characters += size
    if piece:
        yield piece


def _store_alone(row: RequestRecord) -> None:
    try:
        _insert([row])
    except _UNSTORABLE as error:
        # Its content is nobody's business here, and the database may repeat it in its message.
        logger.warning("%s is missing in the log: it cannot be stored (%s)", row.request_id, type(error).__name__)


def _insert(rows: Sequence[RequestRecord]) -> None:
    with transaction.atomic():
        RequestRecord.objects.bulk_create(rows, ignore_conflicts=True)


def _row_or_none(logged: LoggedRequest) -> RequestRecord | None:
    numbers = (logged.arrived_unix_seconds, logged.e2e_seconds)
    if not all(map(math.isfinite, numbers)):
        return None
    try:
        arrived_at = datetime.datetime.fromtimestamp(logged.arrived_unix_seconds, tz=datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    tenant_id = logged.tenant_id
    return RequestRecord(
        request_id=_text("request_id", logged.request_id),
        pool=_text("pool", logged.pool),
        model=_text("model", logged.model),
        tenant=_text("tenant", logged.tenant),
        tenant_id_then=tenant_id if tenant_id is None or 0 <= tenant_id <= _LARGEST_ID else None,
        key_prefix=_text("key_prefix", logged.key_prefix),
        endpoint=_text("endpoint", logged.endpoint),
        is_streamed=logged.is_streamed,
        arrived_at=arrived_at,
        outcome=_text("outcome", logged.outcome),
        code=_text("code", logged.code),
        num_choices=_count(logged.num_choices),
        prompt_tokens=_count(logged.prompt_tokens),
        cached_tokens=_count(logged.cached_tokens),
        completion_tokens=_count(logged.completion_tokens),
        queue_seconds=_seconds(logged.queue_seconds),
        ttft_seconds=_seconds(logged.ttft_seconds),
        itl_seconds=_seconds(logged.itl_seconds),
        e2e_seconds=max(0.0, logged.e2e_seconds),
        num_preemptions=_count(logged.num_preemptions),
        num_attempts=_count(logged.num_attempts),
        engine=_text("engine", logged.engine),
        tunables_version=None if logged.tunables_version is None else _count(logged.tunables_version),
        params=logged.params,
        spans=msgspec.to_builtins(logged.spans),
        prompt_text=_kept(logged.prompt_text),
        output_text=_kept(logged.output_text),
    )


def _text(name: str, text: str) -> str:
    """As a column takes it: without NUL, and no longer than it is."""
    return text.replace("\0", "")[: cast("models.CharField[str, str]", _FIELDS[name]).max_length]


def _kept(text: str | None) -> str | None:
    return None if text is None else text.replace("\0", "�")


def _count(number: int) -> int:
    return max(0, min(number, _MOST_COUNT))


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else max(0.0, seconds)
