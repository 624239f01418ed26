"""Storing alerts, and telling webhooks of them: a job's part. Blocking.

Nothing is lost where a job is killed at any point: an entry leaves Redis once the database has it for good, and a
notice is owed until it was delivered. Whoever gets one may get it twice.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from redis import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.telemetry.alert_models import Alert, AlertNotice, AlertRule
from serving.telemetry.alerts import RaisedAlert, decode_alert
from serving.telemetry.webhook_signing import signed_headers
from serving.telemetry.webhooks import WebhookFailed, post_json

logger = logging.getLogger(__name__)

KEPT_DAYS = 90
MOST_ATTEMPTS = 8
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 600.0
_READ_COUNT = 200
_LONGEST_WHY = 100
_LOST = "Redis lost what was known of it"
_NOTICES_AT_ONCE = 20
_PATIENCE_SECONDS = 4.0
"""A job that has spent so long on slow webhooks leaves the rest to the next one: other jobs wait for it."""

Post = Callable[..., None]
Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    """The wall clock."""
    return datetime.datetime.now(datetime.UTC)


def store_alerts(redis: Redis, *, now: Now = utc_now) -> int:
    """Bring the log of alerts from Redis into the database; gives how many entries it read. Idempotent.

    An alert that goes on by the database, and of which a Redis that lost its data knows nothing, ends now.
    """
    # Asked in this order: what is stored already must be in one of the two, unless it was lost.
    stored = set(Alert.objects.filter(ended_at=None).values_list("alert_id", flat=True))
    pipe = redis.pipeline(transaction=True)
    pipe.xrange(keys.alert_log(), count=_READ_COUNT)
    pipe.hvals(keys.alerts())
    entries, raised = cast("tuple[list[tuple[bytes, dict[bytes, bytes]]], list[bytes]]", pipe.execute())
    if len(entries) < _READ_COUNT:
        lost = stored - _ids_of([*raised, *(fields.get(keys.FIELD) for _, fields in entries)], unless_odd=stored)
    else:
        lost = set()
    if not entries and not lost:
        return 0
    with transaction.atomic():
        for _, fields in entries:
            alert = decode_or_none(decode_alert, fields.get(keys.FIELD))
            if alert is None:
                logger.warning("an alert in the log is not understood by this version and left out")
            else:
                _store(alert, now())
        for one in Alert.objects.filter(alert_id__in=lost, ended_at=None).select_related("rule"):
            _finish(one, now(), moment=now(), why=_LOST)
    if entries:
        redis.xdel(keys.alert_log(), *[entry_id for entry_id, _ in entries])
    return len(entries)


def _ids_of(raw: Iterable[bytes | None], *, unless_odd: set[str]) -> set[str]:
    """The ids of these alerts; `unless_odd` where one is not understood, which may be any."""
    alerts = [decode_or_none(decode_alert, one) for one in raw]
    known = {alert.alert_id for alert in alerts if alert is not None}
    return known if len(alerts) == sum(alert is not None for alert in alerts) else known | unless_odd


def _store(raised: RaisedAlert, moment: datetime.datetime) -> None:
    rule = AlertRule.objects.filter(pk=raised.rule_id).first()
    ended_at = None if raised.ended_at is None else _time(raised.ended_at)
    alert, _ = Alert.objects.get_or_create(
        alert_id=raised.alert_id,
        defaults={
            "rule": rule,
            "name": raised.name,
            "pool": raised.pool,
            "text": raised.text,
            "value": raised.value,
            "began_at": _time(raised.began_at),
        },
    )
    if ended_at is None:
        _owe(alert, "began", moment)
    else:
        _finish(alert, ended_at, moment=moment, why=raised.why_ended)


def _finish(alert: Alert, ended_at: datetime.datetime, *, moment: datetime.datetime, why: str = "") -> None:
    if alert.ended_at is None:
        alert.ended_at, alert.why_ended = ended_at, why[:_LONGEST_WHY]
        alert.save(update_fields=["ended_at", "why_ended"])
    _owe(alert, "ended", moment)


def _owe(alert: Alert, kind: str, moment: datetime.datetime) -> None:
    # Whoever was told that it began is told that it is over, whatever became of the rule.
    told = alert.notices.filter(kind="began").first()
    if told is not None:
        url, salt = told.url, told.webhook_salt
    elif alert.rule is not None:
        url, salt = alert.rule.webhook_url, alert.rule.webhook_salt
    else:
        return
    if url:
        owed = {"url": url, "webhook_salt": salt, "due_at": moment}
        AlertNotice.objects.get_or_create(alert=alert, kind=kind, defaults=owed)


def deliver_notices(*, allowed_hosts: Collection[str], post: Post = post_json, now: Now = utc_now) -> int:
    """Try the notices that are due, the oldest first, for some seconds; gives how many were delivered.

    What fails is tried again after 5 s, then twice as long each time up to ten minutes, eight times in all. Nobody is
    told of an end while the beginning is still to be told. Each is signed; see `serving.telemetry.webhook_signing`.
    """
    began_at, num_delivered = now(), 0
    untold = AlertNotice.objects.filter(alert=OuterRef("alert"), kind="began", due_at__isnull=False)
    due = AlertNotice.objects.filter(Q(kind="began") | ~Exists(untold), due_at__lte=began_at)
    due = due.select_related("alert__rule").order_by("due_at", "pk")
    for notice in due[:_NOTICES_AT_ONCE]:
        num_delivered += _deliver(notice, allowed_hosts=allowed_hosts, post=post, now=now)
        if (now() - began_at).total_seconds() > _PATIENCE_SECONDS:
            break
    return num_delivered


def _deliver(notice: AlertNotice, *, allowed_hosts: Collection[str], post: Post, now: Now) -> bool:
    # Claimed first: of two jobs that found it, one posts, and one that dies with it leaves it due again.
    pause = datetime.timedelta(seconds=_pause(notice.num_attempts))
    claimed = AlertNotice.objects.filter(pk=notice.pk, due_at=notice.due_at, num_attempts=notice.num_attempts)
    if not claimed.update(num_attempts=notice.num_attempts + 1, due_at=now() + pause):
        return False
    own = AlertNotice.objects.filter(pk=notice.pk)
    body = json.dumps(content_of(notice)).encode()
    headers = signed_headers(f"{notice.alert.alert_id}:{notice.kind}", body, salt=_salt_of(notice), at=now())
    try:
        post(notice.url, body, headers=headers, allowed_hosts=allowed_hosts)
    except WebhookFailed as error:
        is_last = notice.num_attempts + 1 >= MOST_ATTEMPTS
        own.update(problem=str(error)[:300], **({"due_at": None} if is_last else {}))
        logger.warning("a webhook could not be told of alert %s: %s", notice.alert.name, error)
        return False
    own.update(due_at=None, delivered_at=now(), problem="")
    return True


def _salt_of(notice: AlertNotice) -> str:
    """The rule's own, which may have been renewed, as long as the rule tells the address that the notice is for."""
    rule = notice.alert.rule
    salt: str = notice.webhook_salt if rule is None or rule.webhook_url != notice.url else rule.webhook_salt
    return salt


def content_of(notice: AlertNotice) -> dict[str, Any]:
    """What a webhook is posted: times are ISO 8601 in UTC. `why_ended` is null unless another reason ended it than that
    the bound was met."""
    alert = notice.alert
    return {
        "event": f"alert.{notice.kind}",
        "alert": alert.alert_id,
        "name": alert.name,
        "pool": alert.pool,
        "condition": alert.text,
        "value": alert.value,
        "began_at": alert.began_at.isoformat(),
        "ended_at": None if alert.ended_at is None else alert.ended_at.isoformat(),
        "why_ended": alert.why_ended or None,
    }


def prune_alerts(*, now: Now = utc_now) -> None:
    """Delete what ended more than 90 days ago."""
    Alert.objects.filter(ended_at__lt=now() - datetime.timedelta(days=KEPT_DAYS)).delete()


def newest_alerts(*, limit: int = 100) -> list[Alert]:
    """The alerts of the past and the present, the newest first, each with its notices."""
    return list(Alert.objects.prefetch_related("notices")[:limit])


def _pause(num_attempts: int) -> float:
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**num_attempts)


def _time(unix_seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_seconds, tz=datetime.UTC)
