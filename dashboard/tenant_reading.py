"""Reading where tenants and keys stand: what the door counts and what the ledger has. Blocking."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Any

from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from dashboard.tenant_presenters import QuotaBar, present_bars
from serving.admission import selectors
from serving.admission.current_use import CurrentUse, is_counted, read_current_use
from serving.contracts.quotas import Quotas

logger = logging.getLogger(__name__)


def today() -> datetime.date:
    """The day of UTC that it is."""
    return timezone.now().date()


def read_bars(subject: str, quotas: Quotas, *, redis: Redis) -> tuple[QuotaBar, ...]:
    """The bars of `tenant:<id>` or `key:<public prefix>` with these quotas."""
    (use,) = read_uses(redis, [(subject, quotas)])
    day = today()
    return present_bars(
        quotas,
        use,
        of_day=selectors.used_tokens(subject, since_day=day),
        of_month=selectors.used_tokens(subject, since_day=day.replace(day=1)),
    )


def read_uses(redis: Redis, wanted: Sequence[tuple[str, Quotas]]) -> list[CurrentUse | None]:
    """What each subject with these quotas uses now; None of what the door does not count, and of all where Redis does
    not answer."""
    counted = [subject for subject, quotas in wanted if is_counted(quotas)]
    try:
        known: dict[str, Any] = dict(zip(counted, read_current_use(redis, counted), strict=True))
    except (RedisError, OSError) as error:
        logger.warning("what tenants use now cannot be read: %s", error)
        known = {}
    return [known.get(subject) for subject, _ in wanted]
