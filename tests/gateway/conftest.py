"""Gateways and workers, started for a test and stopped at its end."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from serving.admission.prediction import Predictor
from serving.config.services import connect
from serving.contracts.ids import OwnerId
from serving.gateway.core import Gateway
from serving.gateway.text.tokenizer import TextModel
from serving.worker.lifecycle import EngineWorker
from tests.gateway.harness import POOL, Harness, RecordingObserver, RecordingRoom, RunningWorker, ScriptedRunner


@pytest.fixture(scope="session")
def text_model(default_model: Path) -> TextModel:
    return TextModel.load(default_model)


@pytest.fixture
def start_worker(valkey: str, text_model: TextModel) -> Iterator[Callable[..., RunningWorker]]:
    """Starts workers in this process; all have left when the test ends."""
    started: list[RunningWorker] = []

    def start(*, url: str = valkey, drain_seconds: float = 5.0, **options: Any) -> RunningWorker:
        runner = ScriptedRunner(eos_token_id=min(text_model.eos_token_ids), **options)
        worker = EngineWorker(
            runner, redis=lambda: Redis.from_url(url), pool=POOL, model=text_model.name, device="cpu", dtype="none"
        )
        thread = threading.Thread(target=worker.run, kwargs={"drain_seconds": drain_seconds}, daemon=True)
        thread.start()
        started.append(RunningWorker(worker, runner, thread))
        return started[-1]

    yield start
    for running in started:
        if running.thread.is_alive():
            running.leave()


@pytest.fixture
async def start_gateway(valkey: str, text_model: TextModel) -> AsyncIterator[Callable[..., Any]]:
    """Starts gateways on the test's loop; all have stopped when the test ends."""
    started: list[tuple[Any, ...]] = []

    async def start(*, failover_seconds: float = 30.0, owner: str = "owner", url: str = valkey) -> Harness:
        redis, reading_redis = connect(url), connect(url)
        observer, room = RecordingObserver(), RecordingRoom()
        gateway = Gateway(
            redis=redis,
            reading_redis=reading_redis,
            owner_id=OwnerId(owner),
            text_models={POOL: text_model},
            waiting_room=room,
            observer=observer,
            loads=Predictor(redis, [POOL]),
            failover_seconds=failover_seconds,
        )
        started.append((gateway, redis, reading_redis))
        await gateway.start()
        return Harness(gateway, observer, room, text_model)

    yield start
    for gateway, *clients in started:
        await gateway.stop()
        for client in clients:
            await client.aclose()
