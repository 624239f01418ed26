"""The parts of a web process together: what ends before what."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from channels.layers import channel_layers
from django.conf import LazySettings

from serving.config.pools import PoolSettings
from serving.config.services import Services, build_services
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName, RequestId
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Generation
from serving.gateway.text.tokenizer import TextModel
from serving.telemetry.feed import FeedClosed
from tests.api.conftest import POOL


async def build(redis_url: str, folders: dict[str, Path]) -> Services:
    """The parts of a web process that serves pools over models in these folders."""
    return await build_services(
        SimpleNamespace(
            REDIS_URL=redis_url,
            FOOTPLATE_POOLS={name: PoolSettings(name=name, model=folder) for name, folder in folders.items()},
            FOOTPLATE_DRAIN_SECONDS=30.0,
            FOOTPLATE_FAILOVER_SECONDS=5.0,
            FOOTPLATE_HEADER_HOLD_SECONDS=5.0,
            FOOTPLATE_OTLP_ENDPOINT="",
        )
    )


async def test_pools_of_one_model_share_what_is_known_of_its_text(
    valkey: str, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model_folder, other := tmp_path / "another")
    services = await build(valkey, {"chat": model_folder, "small": other, "bulk": model_folder})
    chat, small, bulk = (services.text_models[PoolName(name)] for name in ("chat", "small", "bulk"))
    assert bulk is chat
    assert (chat.name, small.name) == (model_folder.name, "another")
    assert set(services.chat_templates) == {model_folder.name, "another"}
    assert [(view.name, view.model) for view in services.gateway.pools()] == [
        ("chat", model_folder.name),
        ("small", "another"),
        ("bulk", model_folder.name),
    ]
    closed: list[str] = []
    close = TextModel.close
    monkeypatch.setattr(TextModel, "close", lambda model: (closed.append(model.name), close(model)))
    await services.start()
    await services.close()
    assert sorted(closed) == sorted([model_folder.name, "another"])


async def test_consoles_are_told_of_a_stop_before_requests_are_ended(
    valkey: str, model_folder: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = settings.CHANNEL_LAYERS["default"]
    monkeypatch.setitem(
        settings.CHANNEL_LAYERS, "default", {**layer, "CONFIG": {**layer["CONFIG"], "hosts": [{"address": valkey}]}}
    )
    monkeypatch.setattr(channel_layers, "backends", {})
    services = await build(valkey, {POOL: model_folder})
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
