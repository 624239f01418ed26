"""Periodic work of tuning. Each may run twice, or at once.

Errors of Redis and of a database that is out of reach pass through: what was not done is done when it is due again.
"""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.utils import timezone
from redis import Redis

from serving.tuning.effect_keeping import keep_effects as keep

_REDIS_SECONDS = 5.0


@shared_task(name="tuning.keep_effects")  # type: ignore[untyped-decorator]
def keep_effects() -> None:
    """Keep what was measured around versions."""
    with Redis.from_url(
        settings.REDIS_URL, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS
    ) as redis:
        keep(redis, now=timezone.now())
