"""Ten times more than can be served: the real API, gateway, door, books and worker; only the model is scripted."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis as BlockingRedis

from serving.admission.keys import KeyText
from serving.api.prompting import Prompter
from serving.api.starting import Starter
from serving.config.asgi import build_application
from serving.config.services import connect
from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.contracts.messages import AnnouncedTunables, encode
from serving.contracts.tunables import Tunables
from serving.engine.plan import StepPlan, StepResult
from serving.gateway.core import Gateway, end_task
from serving.gateway.text.tokenizer import TextModel
from serving.telemetry import meter
from serving.telemetry.books import read_books
from serving.telemetry.meter import RequestMeter
from serving.worker.lifecycle import EngineWorker
from tests.api.conftest import MODEL, POOL, ScriptedServices
from tests.gateway.harness import ScriptedRunner

MAX_QUEUE = 6
NUM_TOKENS = 20
STEP_SECONDS = 0.02
CAPACITY = 4 / (NUM_TOKENS * STEP_SECONDS)
"""Requests a second, with four at once."""
SECONDS = 4.0


class Babbler(ScriptedRunner):
    """Says the same letter for ever, whatever the seed."""

    def run(self, plan: StepPlan) -> StepResult:
        self.scripts = collections.defaultdict(lambda: [1] * 1000)
        return super().run(plan)


@pytest.fixture
def worker(valkey: str, text_model: TextModel) -> Any:
    tunables = Tunables(max_running=4, max_queue_requests=MAX_QUEUE)
    BlockingRedis.from_url(valkey).set(keys.announced_tunables(POOL), encode(AnnouncedTunables(3, tunables)))
    runner = Babbler(eos_token_id=min(text_model.eos_token_ids), step_seconds=STEP_SECONDS)
    worker = EngineWorker(
        runner,
        redis=lambda: BlockingRedis.from_url(valkey),
        pool=POOL,
        model=text_model.name,
        device="cpu",
        dtype="none",
    )
    thread = threading.Thread(target=worker.run, kwargs={"drain_seconds": 5.0}, daemon=True)
    thread.start()
    yield worker
    worker.leave()
    thread.join(20)


@pytest.fixture
async def client(
    worker: EngineWorker,
    valkey: str,
    services: ScriptedServices,
    text_model: TextModel,
    key: KeyText,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(meter, "_PUBLISH_SECONDS", 0.05)
    redis, reading_redis = connect(valkey), connect(valkey)
    observer = RequestMeter(redis, owner_id=OwnerId("owner"), pools=[POOL])
    gateway = Gateway(
        redis=redis,
        reading_redis=reading_redis,
        owner_id=OwnerId("owner"),
        text_models={POOL: text_model},
        waiting_room=services.door,
        observer=observer,
        loads=services.predictor,
        failover_seconds=30,
    )
    await gateway.start()
    observer.start()
    while not gateway.pools()[0].has_engines:
        await gateway.refresh_pools()
    starter = dataclasses.replace(services.starter, gateway=gateway, observer=observer)
    assert isinstance(starter, Starter)
    real: Any = services
    real.gateway, real.observer, real.starter = gateway, observer, starter
    real.prompter = Prompter(starter=starter, chat_templates=services.chat_templates)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(build_application(real)),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {key.text}"},
    ) as client:
        yield client
    await gateway.stop()
    await observer.stop()
    for connection in (redis, reading_redis):
        await connection.aclose()


class Watch:
    """Owns what was seen of the queue, the books and the memory while requests came."""

    def __init__(self, services: ScriptedServices) -> None:
        self._services = services
        self.most_waiting = 0
        self.num_samples = 0
        self.resident_bytes: list[int] = []

    async def look(self) -> None:
        """One sample; fails where the books do not balance."""
        redis = self._services.redis
        self.most_waiting = max(
            self.most_waiting, int(await redis.hget(keys.permit_weights(POOL), "total:requests") or 0)
        )
        books = await read_books(redis, POOL)
        outcomes = ("finished:", "refused:", "failed:", "aborted")
        ended = sum(count for name, count in books.counts.items() if name.startswith(outcomes))
        assert books.counts["submitted"] == ended + books.num_waiting + books.num_running
        self.resident_bytes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
        self.num_samples += 1

    async def look_again_and_again(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.05)


@pytest.mark.heavy
@pytest.mark.timeout(120)
async def test_what_exceeds_the_queue_is_refused_with_a_time_and_the_rest_is_served_whole(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    """C80, C89: at ten times the capacity the queue keeps its bound, the books balance at every sample, memory is
    flat, and nobody is told of an end that was none."""
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": NUM_TOKENS, "ignore_eos": True}
    watch = Watch(services)
    watching = asyncio.create_task(watch.look_again_and_again())
    count = round(10 * CAPACITY * SECONDS)
    asking = []
    for _ in range(count):
        asking.append(asyncio.create_task(client.post("/v1/completions", json=body, timeout=60)))
        await asyncio.sleep(SECONDS / count)
    answers = await asyncio.gather(*asking)
    await end_task(watching)
    assert watching.cancelled() or watching.exception() is None, watching.exception()
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == count
    assert {answer.json()["choices"][0]["finish_reason"] for answer in served} == {"length"}
    assert {answer.json()["usage"]["completion_tokens"] for answer in served} == {NUM_TOKENS}
    assert {answer.json()["error"]["code"] for answer in refused} == {"queue_full"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert len(refused) > len(served) > MAX_QUEUE
    assert 0 < watch.most_waiting <= MAX_QUEUE
    assert watch.num_samples > 10
    third = len(watch.resident_bytes) // 3
    assert max(watch.resident_bytes) - watch.resident_bytes[third] < 32 * 2**20
    await _wait_for_the_books(services, finished=len(served), refused=len(refused))


async def _wait_for_the_books(services: ScriptedServices, *, finished: int, refused: int) -> None:
    async with asyncio.timeout(20):
        while True:
            books = await read_books(services.redis, POOL)
            if books.counts["submitted"] == finished + refused and not books.num_running:
                break
            await asyncio.sleep(0.02)
    assert books.counts["finished:length"] == finished
    assert books.counts["refused:queue_full"] == refused
    assert books.num_waiting == 0
    assert int(await services.redis.hget(keys.permit_weights(POOL), "total:requests") or 0) == 0
