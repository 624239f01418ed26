"""Rules, and a watcher that is shown frames."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from serving.contracts.ids import PoolName
from serving.telemetry.alert_models import AlertRule
from serving.telemetry.alert_rules import create_rule
from serving.telemetry.alerts import AlertWatcher, Rule, ToWatch, raised_alerts
from serving.telemetry.conditions import Condition
from tests.telemetry.test_conditions import frame_at

POOL = PoolName("chat")
SLOW, FAST = (0.9,) * 20, (0.1,) * 20
HOSTS = frozenset({"127.0.0.1", "alerts.example:8443"})


class Rules:
    """What the database says, or that it says nothing."""

    def __init__(self) -> None:
        self.rules = [rule()]
        self.pools = [POOL]
        self.works = True
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self) -> ToWatch:
        await self.answers.wait()
        if not self.works:
            raise RuntimeError("the disk is gone")
        return ToWatch(self.rules, self.pools)


def rule(**changes: Any) -> Rule:
    condition = Condition(metric="ttft_p95", bound=500.0, for_seconds=10.0)
    return Rule(**{"id": 1, "revision": 1, "name": "slow", "pool": "", "condition": condition, **changes})


class Watched:
    """A watcher that is shown frames, and has read its rules by then."""

    def __init__(self, redis: Redis, rules: Rules) -> None:
        self.redis = redis
        self.watcher = AlertWatcher(redis, read=rules)

    async def see(self, seconds: float, *, ttfts: tuple[float, ...] = SLOW) -> list[str]:
        """The names of the alerts that go on after a frame."""
        await self.watcher(frame_at(seconds, ttfts=ttfts))
        await asyncio.sleep(0)
        return [alert.name for alert in await raised_alerts(self.redis)]


def store_rule() -> AlertRule:
    """A stored rule that tells a webhook which does not answer."""
    values = {"name": "slow", "metric": "ttft_p95", "bound": 500.0, "for_seconds": 10.0}
    return create_rule({**values, "webhook_url": "http://127.0.0.1:9/hook"}, author="ada", allowed_hosts=HOSTS)
