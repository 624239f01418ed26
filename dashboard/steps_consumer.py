"""The websocket of a Steps page: what `dashboard.steps_protocol` says, from the handshake to the close."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
from redis.exceptions import RedisError

from dashboard import protocol, steps_protocol
from dashboard.page_sockets import Close, Limits, PageConsumer, PageSocket
from dashboard.protocol import Ack
from dashboard.rechecks import Rechecks
from dashboard.sessions import Operator
from dashboard.steps_protocol import EngineInfo, Engines, Steps, StepsHello, StepsMessage, WatchSteps
from serving.contracts.ids import EngineId
from serving.contracts.steps import ROW_FIELDS
from serving.telemetry.selectors import live_engines
from serving.telemetry.steps import StepsText, StepsWatcher

logger = logging.getLogger(__name__)

_ENGINES_EVERY_SECONDS = 3.0


class StepsConsumer(PageConsumer):
    """The ASGI application of `/console/steps/<pool>`."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rechecks: Rechecks | None = None,
    ) -> None:
        super().__init__(_StepsPage, limits, clock=clock, rechecks=rechecks)


class _StepsPage(PageSocket):
    """Owns one open connection of a Steps page, on the server's loop."""

    def __init__(self, *connection: Any, **parts: Any) -> None:
        super().__init__(*connection, **parts)
        loop = asyncio.get_running_loop()
        self._watch: asyncio.Future[WatchSteps] = loop.create_future()
        self._greeted_with: asyncio.Future[list[EngineInfo]] = loop.create_future()
        self._watcher: StepsWatcher | None = None
        self._sequence = 0

    def _open(self) -> None:
        """Nothing is read before the page says of which engine."""

    def _shut(self) -> None:
        if self._watcher is not None:
            self._watcher.close()

    def _parts(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._show(), self._tell_of_engines())

    @property
    def _num_skipped(self) -> int:
        return self._pacing.num_skipped + (0 if self._watcher is None else self._watcher.num_skipped)

    def _take(self, text: str | None) -> None:
        message = steps_protocol.read_message(text)
        if isinstance(message, Ack):
            self._pacing.acknowledge(message.sequence, self._clock())
        elif self._watch.done():
            raise Close(protocol.BAD_MESSAGE, "watch may be said once a connection")
        else:
            self._watch.set_result(message)

    def _note_operator(self, operator: Operator) -> None:
        """Nothing here depends on more than that it may watch."""

    async def _show(self) -> None:
        watch = await self._watch
        engines = await self._read_engines()
        if engines is None:  # Nobody is said to have left because Redis is away.
            engines = [] if watch.engine is None else [EngineInfo(watch.engine, watch.engine)]
        engine = watch.engine or (engines[0].engine_id if engines else None)
        if engine is not None:
            self._watcher = self._services.steps.watch(EngineId(engine))
        await self._send(StepsHello(pool=self.pool, engine=engine, engines=engines, row_fields=ROW_FIELDS))
        self._greeted_with.set_result(engines)
        if self._watcher is None:
            await asyncio.get_running_loop().create_future()  # for ever: the page connects again as an engine comes
            return
        await self._send_steps([text for text in await self._watcher.history() if text.last > watch.after])
        while True:
            await self._send_steps([await self._watcher.next()])

    async def _send_steps(self, texts: list[StepsText]) -> None:
        if self._pacing.take_place(self._sequence + 1, self._clock()):
            self._sequence += 1
            await self._send(Steps(sequence=self._sequence, batches=[msgspec.Raw(text.json) for text in texts]))

    async def _tell_of_engines(self) -> None:
        known = await self._greeted_with
        while True:
            await asyncio.sleep(_ENGINES_EVERY_SECONDS)
            engines = await self._read_engines()
            known = known if engines is None else engines
            await self._send(Engines(engines=known))

    async def _read_engines(self) -> list[EngineInfo] | None:
        """The engines that live; None while Redis does not tell."""
        try:
            found = await live_engines(self._services.redis, self.pool)
        except (RedisError, OSError) as error:
            logger.debug("The engines of pool %s are not known: %s", self.pool, error)
            return None
        return [EngineInfo(engine.engine_id, engine.name) for engine in found]

    async def _send(self, message: StepsMessage) -> None:
        await self._send_text(steps_protocol.encode(message).decode())
