"""The parts of a web process together: what ends before what."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from channels.layers import channel_layers
from django.conf import LazySettings

from serving.config.services import build_services
from serving.contracts.errors import Unavailable
from serving.contracts.ids import RequestId
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Generation
from serving.telemetry.feed import FeedClosed
from tests.api.conftest import POOL


async def test_consoles_are_told_of_a_stop_before_requests_are_ended(
    valkey: str, model_folder: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = settings.CHANNEL_LAYERS["default"]
    monkeypatch.setitem(
        settings.CHANNEL_LAYERS, "default", {**layer, "CONFIG": {**layer["CONFIG"], "hosts": [{"address": valkey}]}}
    )
    monkeypatch.setattr(channel_layers, "backends", {})
    services = await build_services(
        SimpleNamespace(
            REDIS_URL=valkey,
            FOOTPLATE_MODEL=model_folder,
            FOOTPLATE_POOL=POOL,
            FOOTPLATE_FAILOVER_SECONDS=5.0,
            FOOTPLATE_HEADER_HOLD_SECONDS=5.0,
        )
    )
    await services.start()
    ends: list[str] = []

    async def watch() -> None:
        with pytest.raises(FeedClosed):
            await watcher.next()
        ends.append("console")

    async def read() -> None:
        with pytest.raises(Unavailable):
            await anext(stream)
        ends.append("request")

    watcher = services.feed.watch(POOL)
    stream = services.gateway.generate(
        Generation(
            request_id=RequestId("req_1"),
            pool=POOL,
            tenant="tests",
            prompt_ids=[1, 2],
            params=(SamplingParams(max_tokens=5, seed=1),),
            stop=(),
            arrived_at=time.monotonic(),
        )
    )
    readers = [asyncio.create_task(watch()), asyncio.create_task(read())]
    await asyncio.sleep(0.1)
    assert ends == []
    await services.end_requests()
    await asyncio.gather(*readers)
    assert ends == ["console", "request"]
    await services.close()
