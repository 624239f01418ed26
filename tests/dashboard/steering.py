"""Changes of tunables that a test makes behind the console's back."""

from __future__ import annotations

from typing import Any

from serving.tuning.services import change
from tests.dashboard.harness import POOL, Services
from tests.dashboard.tenancy import in_thread

TUNING = f"/console/pools/{POOL}/tuning/"


async def tune(services: Services, **changes: Any) -> int:
    return await store(services, changes)


async def store(services: Services, changes: dict[str, Any], **options: Any) -> int:
    made = await in_thread(change)(POOL, changes, reason="", author="ben", redis=services.blocking_redis, **options)
    return int(made.number)
