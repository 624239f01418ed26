"""A pool in a real database, a real Valkey, and the Lab's process not told of anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from serving.lab.predictions import computing, services
from serving.tuning.services import ensure_pool
from tests.telemetry.logged import POOL


@pytest.fixture
def redis(valkey: str, settings: Any) -> Iterator[Redis]:
    settings.REDIS_URL = valkey
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def woken(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The predictions of which the Lab's process was told."""
    numbers: list[int] = []
    monkeypatch.setattr(services, "wake", numbers.append)
    monkeypatch.setattr(computing, "wake", numbers.append)
    return numbers


@pytest.fixture
def pool(transactional_db: None, woken: list[int]) -> str:
    return ensure_pool(POOL, "a-model").name
