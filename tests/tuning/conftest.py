"""A pool, and Redis clients of both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from serving.contracts.ids import PoolName
from serving.tuning.services import ensure_pool

POOL = PoolName("default")


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def pool(transactional_db: None) -> str:
    return ensure_pool(POOL, "a-model").name
