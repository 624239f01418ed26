"""A clean Valkey, and what owners, engines and the monitor put into it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from tests.telemetry.server import Server

POOL = PoolName("default")


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def snapshot(engine_id: str = "engine-1", **changes: Any) -> EngineSnapshot:
    """An engine at rest, but for `changes`."""
    values: dict[str, Any] = {
        "engine_id": EngineId(engine_id),
        "name": engine_id,
        "pool": POOL,
        "model": "tiny",
        "state": "ready",
        "device": "cpu",
        "dtype": "float32",
        "max_model_len": 1024,
        "tunables_version": 1,
        "num_waiting": 0,
        "num_waiting_tokens": 0,
        "num_running": 0,
        "block_size": 16,
        "kv_blocks_total": 100,
        "kv_blocks_used": 0,
        "kv_blocks_cached": 0,
        "kv_blocks_free": 100,
        "steps_total": 0,
        "prompt_tokens_total": 0,
        "generated_tokens_total": 0,
        "preemptions_total": 0,
        "padded_tokens_total": 0,
        "busy_ratio": 0.0,
        "last_step_ms": 0.0,
        "rss_bytes": 1,
        "uptime_seconds": 10.0,
    }
    return EngineSnapshot(**{**values, **changes})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def redis(valkey: str) -> AsyncIterator[Redis]:
    """A client of a real Valkey that holds nothing."""
    async with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def server() -> Iterator[Server]:
    """A Valkey of the test's own, not started yet."""
    with tempfile.TemporaryDirectory(prefix="footplate-valkey-") as folder:
        server = Server(Path(folder))
        yield server
        server.kill()


class Consoles:
    """Takes down what a monitor broadcasts; may be out of reach."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.heard: list[tuple[PoolName, int, bytes]] = []
        self.num_calls = 0

    async def __call__(self, pool: PoolName, *, sequence: int, frame: bytes) -> None:
        self.num_calls += 1
        if self.error is not None:
            raise self.error
        self.heard.append((pool, sequence, frame))


@pytest.fixture
def consoles() -> Consoles:
    return Consoles()
