"""The parts of a web process, built once and handed to whoever needs them."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from channels.layers import get_channel_layer
from redis import Redis as BlockingRedis
from redis.asyncio import BlockingConnectionPool, Redis

from serving.admission.authenticator import Authenticator
from serving.admission.console_account import read_console_account
from serving.admission.door import Door
from serving.admission.drain import DrainState
from serving.admission.ledger import Ledger
from serving.admission.prediction import Predictor
from serving.admission.selectors import used_tokens
from serving.admission.spent_before import SpentBefore
from serving.admission.usage import UsageRow, add_usage
from serving.api.prompting import Prompter
from serving.api.starting import Starter
from serving.config.pools import PoolSettings
from serving.contracts.ids import OwnerId, PoolName
from serving.gateway.core import Gateway
from serving.gateway.text.chat_template import ChatTemplate
from serving.gateway.text.tokenizer import TextModel
from serving.lab.sample_traffic import SampleTraffic
from serving.telemetry.exposition import Exposition
from serving.telemetry.feed import LiveFeed
from serving.telemetry.meter import RequestMeter
from serving.telemetry.observers import Observers
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.running_board import RunningBoard
from serving.telemetry.steps import StepsFeed
from serving.telemetry.traces import RequestTraces, collector_provider
from serving.threads import in_thread

_MAX_CONNECTIONS = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What views reach through `request.scope["footplate"]`. Lives on one event loop, from `start` to `close`.

    `redis` belongs to the event loop (`reading_redis` to the gateway's reading alone), `blocking_redis` to threads.
    `chat_templates` are by the model's name.
    """

    redis: Redis
    reading_redis: Redis
    blocking_redis: BlockingRedis
    authenticator: Authenticator
    door: Door
    ledger: Ledger
    gateway: Gateway
    starter: Starter
    prompter: Prompter
    sample_traffic: SampleTraffic
    feed: LiveFeed
    steps: StepsFeed
    text_models: Mapping[PoolName, TextModel]
    chat_templates: Mapping[str, ChatTemplate]
    meter: RequestMeter
    running_board: RunningBoard
    observer: Observers
    traces: RequestTraces | None
    exposition: Exposition
    drain: DrainState
    header_hold_seconds: float

    async def start(self) -> None:
        """Begin to serve. Raises Redis's errors where it cannot be reached."""
        await self.gateway.start()
        await self.feed.start()
        self.meter.start()
        self.running_board.start()
        self.ledger.start()

    async def end_requests(self) -> None:
        """Tell the consoles to connect again elsewhere, then end what still runs with an error to its client.

        Idempotent.
        """
        await self.feed.close()
        await self.steps.close()
        await self.sample_traffic.close()
        await self.gateway.stop()

    async def close(self) -> None:
        """End what still runs, publish the last figures, and close every connection."""
        await self.end_requests()
        await self.meter.stop()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        await self.running_board.stop()
        await self.ledger.stop()
        await self.authenticator.close()
        for text_model in {text_model.name: text_model for text_model in self.text_models.values()}.values():
            text_model.close()
        await self.redis.aclose()
        await self.reading_redis.aclose()
        self.blocking_redis.close()


async def build_services(settings: Any) -> Services:
    """The parts of a web process on the running event loop; nothing runs and no connection is open yet.

    Pools that serve one model share what is known of its text. Raises `ModelTextProblem`, naming folder and file, where
    a model's folder cannot be used, and `TracesUnavailable` where traces are asked for and cannot be made.
    """
    redis, reading_redis = connect(settings.REDIS_URL), connect(settings.REDIS_URL)
    owner_id = OwnerId(f"web-{socket.gethostname()}-{uuid.uuid4().hex[:12]}")
    pools: Mapping[str, PoolSettings] = settings.FOOTPLATE_POOLS
    folders = {pool.model.name: pool.model for pool in pools.values()}
    by_model = {name: await asyncio.to_thread(_load_text_model, folder) for name, folder in folders.items()}
    text_models = {PoolName(pool.name): by_model[pool.model.name] for pool in pools.values()}
    ledger = Ledger(_add_usage)
    door = Door(redis, books=ledger, spent_before=SpentBefore(functools.partial(_read_used_tokens, ledger)))
    model_names = {pool: text_model.name for pool, text_model in text_models.items()}
    meter = RequestMeter(redis, owner_id=owner_id, pools=text_models, models=model_names)
    request_metrics = RequestMetrics(model_names)
    traces = _traces(settings.FOOTPLATE_OTLP_ENDPOINT, owner=owner_id, models=model_names)
    observer = Observers(meter, request_metrics, *([] if traces is None else [traces]))
    drain = DrainState(grace_seconds=settings.FOOTPLATE_DRAIN_SECONDS)
    chat_templates = {name: ChatTemplate.load(folder) for name, folder in folders.items()}
    predictor = Predictor(redis, text_models)
    gateway = Gateway(
        redis=redis,
        reading_redis=reading_redis,
        owner_id=owner_id,
        text_models=text_models,
        waiting_room=door,
        observer=observer,
        loads=predictor,
        failover_seconds=settings.FOOTPLATE_FAILOVER_SECONDS,
    )
    starter = Starter(gateway=gateway, door=door, observer=observer, drain=drain, predictor=predictor)
    prompter = Prompter(
        starter=starter,
        chat_templates=chat_templates,
        read_account=functools.partial(in_thread, read_console_account),
    )
    return Services(
        redis=redis,
        reading_redis=reading_redis,
        blocking_redis=BlockingRedis.from_url(settings.REDIS_URL, socket_timeout=5),
        authenticator=Authenticator(redis),
        door=door,
        ledger=ledger,
        gateway=gateway,
        starter=starter,
        prompter=prompter,
        sample_traffic=SampleTraffic(redis, prompter),
        feed=LiveFeed(get_channel_layer()),
        steps=StepsFeed(redis),
        text_models=text_models,
        chat_templates=chat_templates,
        meter=meter,
        running_board=RunningBoard(redis, owner_id=owner_id, owner=gateway),
        observer=observer,
        traces=traces,
        exposition=Exposition(redis, requests=request_metrics, models=model_names),
        drain=drain,
        header_hold_seconds=settings.FOOTPLATE_HEADER_HOLD_SECONDS,
    )


def _traces(endpoint: str, *, owner: OwnerId, models: Mapping[PoolName, str]) -> RequestTraces | None:
    return RequestTraces(collector_provider(endpoint, owner=owner), models=models) if endpoint else None


def _load_text_model(folder: Path) -> TextModel:
    text_model = TextModel.load(folder)
    text_model.grammars.load()
    return text_model


async def _add_usage(rows: list[UsageRow]) -> None:
    await in_thread(add_usage, rows)


async def _read_used_tokens(ledger: Ledger, subject: str, since_day: datetime.date) -> int:
    await ledger.store()
    return await in_thread(used_tokens, subject, since_day=since_day)


def connect(url: str) -> Redis:
    """A client that waits for a free connection instead of failing when many requests come at once.

    Its socket's patience is longer than the longest blocking read: what hangs longer is as good as gone.
    """
    pool = BlockingConnectionPool.from_url(
        url, max_connections=_MAX_CONNECTIONS, timeout=5, socket_timeout=5, socket_connect_timeout=5
    )
    return Redis(connection_pool=pool)
