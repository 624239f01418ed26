"""What tests of admission share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.admission.keys import KeyText
from serving.admission.services import create_key
from serving.threads import in_thread


class Clock:
    """A monotonic clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def blocking_redis(valkey: str) -> Iterator[BlockingRedis]:
    with BlockingRedis.from_url(valkey) as client:
        yield client


@pytest.fixture
async def redis(valkey: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(valkey)
    yield client
    await client.aclose()


@pytest.fixture
async def key(transactional_db: None) -> KeyText:
    return await in_thread(create_key, "acme")


def bearer(key: KeyText) -> str:
    return f"Bearer {key.text}"
