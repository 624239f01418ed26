"""A scripted server, a real Valkey and a pool of which an engine lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.messages import encode
from serving.lab.runs import services
from serving.tuning.services import ensure_pool
from tests.lab.runs.scripted import POOL, Handler
from tests.telemetry.conftest import snapshot


@pytest.fixture
def handler(settings: Any) -> Iterator[type[Handler]]:
    class Own(Handler):
        seen: ClassVar[list[str]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings.FOOTPLATE_LAB_URL = f"http://127.0.0.1:{server.server_address[1]}"
    yield Own
    server.shutdown()
    server.server_close()


@pytest.fixture
def redis(valkey: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    settings.REDIS_URL = valkey
    monkeypatch.setattr(services, "wake", lambda: None)
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def pool(transactional_db: None, redis: Redis) -> str:
    engine = snapshot("one")
    redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    redis.zadd(keys.engines(POOL), {engine.engine_id: 1})
    return ensure_pool(POOL, "a-model").name
