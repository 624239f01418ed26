"""A pool with a living engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.messages import encode
from serving.lab.runs import services
from serving.tuning.services import ensure_pool
from tests.lab.steps.evidence import POOL
from tests.telemetry.conftest import snapshot


@pytest.fixture
def redis(valkey: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    settings.REDIS_URL = valkey
    monkeypatch.setattr(services, "wake", lambda: None)
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def pool(db: None, redis: Redis) -> str:
    engine = snapshot("one", backend="own")
    redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    redis.zadd(keys.engines(POOL), {engine.engine_id: 1})
    return ensure_pool(POOL, "tiny").name
