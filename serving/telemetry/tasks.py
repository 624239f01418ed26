"""Periodic work of telemetry: what waits in Redis is stored, what is too old goes. Each may run twice, or at once.

Errors of Redis and of a database that is out of reach pass through: what was not done is done when it is due again.
"""

from __future__ import annotations

import datetime

from celery import shared_task
from django.conf import settings
from django.utils import timezone
from redis import Redis

from serving.telemetry import alert_log, request_drain, rollup_drain

_REDIS_SECONDS = 5.0


@shared_task(name="telemetry.drain_chronicle")  # type: ignore[untyped-decorator]
def drain_chronicle() -> None:
    """Store stretches of time and events."""
    with _redis() as redis:
        rollup_drain.drain_chronicle(redis)


@shared_task(name="telemetry.prune_rollups")  # type: ignore[untyped-decorator]
def prune_rollups() -> None:
    """Delete stretches of time and events that are older than they are kept."""
    with _redis() as redis:
        rollup_drain.prune_rollups(redis)


@shared_task(name="telemetry.settle_alerts")  # type: ignore[untyped-decorator]
def settle_alerts() -> None:
    """Store alerts that began or ended, and tell webhooks of them."""
    with _redis() as redis:
        alert_log.store_alerts(redis)
    alert_log.deliver_notices(allowed_hosts=settings.FOOTPLATE_WEBHOOK_HOSTS)


@shared_task(name="telemetry.prune_alerts")  # type: ignore[untyped-decorator]
def prune_alerts() -> None:
    """Delete alerts that ended long ago."""
    alert_log.prune_alerts()


@shared_task(name="telemetry.drain_requests")  # type: ignore[untyped-decorator]
def drain_requests() -> None:
    """Store requests that ended."""
    with _redis() as redis:
        request_drain.drain_requests(
            redis,
            keeps_requests=settings.FOOTPLATE_REQUEST_LOG_DAYS > 0,
            keeps_texts=settings.FOOTPLATE_TEXT_DAYS > 0,
        )


@shared_task(name="telemetry.prune_requests")  # type: ignore[untyped-decorator]
def prune_requests() -> None:
    """Delete requests, and texts of requests, that are older than they are kept."""
    request_drain.prune_requests(
        now=timezone.now(),
        requests_kept=datetime.timedelta(days=settings.FOOTPLATE_REQUEST_LOG_DAYS),
        texts_kept=datetime.timedelta(days=settings.FOOTPLATE_TEXT_DAYS),
    )


def _redis() -> Redis:
    return Redis.from_url(settings.REDIS_URL, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS)
