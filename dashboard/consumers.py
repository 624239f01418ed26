"""The websocket of a Live page: what `dashboard.protocol` says, from the handshake to the close."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
from redis.exceptions import RedisError

from dashboard import protocol
from dashboard.commands import Command, Commands
from dashboard.page_sockets import Close, Limits, PageConsumer, PageSocket
from dashboard.protocol import Ack, Hello, History, Refused, ServerMessage, Watch
from dashboard.rechecks import ENDINGS, Rechecks
from dashboard.sessions import Operator
from dashboard.threads import in_thread
from serving.telemetry.feed import Watcher, read_history

__all__ = ["Limits", "LiveConsumer"]

logger = logging.getLogger(__name__)


class LiveConsumer(PageConsumer):
    """The ASGI application of `/console/live/<pool>`."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rechecks: Rechecks | None = None,
    ) -> None:
        super().__init__(_Page, limits, clock=clock, rechecks=rechecks)


class _Page(PageSocket):
    """Owns one open connection of a Live page, on the server's loop."""

    def __init__(self, *connection: Any, **parts: Any) -> None:
        super().__init__(*connection, **parts)
        self._commands = Commands(self.pool, self._services.blocking_redis)
        self._waiting: asyncio.Queue[Command | Watch | Operator] = asyncio.Queue(self._limits.max_waiting)
        self._has_asked_to_watch = False
        self._is_watching = False
        self._told: Operator | None = None
        self._watcher: Watcher | None = None

    def _open(self) -> None:
        self._watcher = self._services.feed.watch(self.pool)

    def _shut(self) -> None:
        if self._watcher is not None:
            self._watcher.close()

    def _parts(self) -> Iterable[Coroutine[Any, Any, None]]:
        assert self._watcher is not None, "the page was let in"
        return (self._work(), self._show(self._watcher))

    @property
    def _num_skipped(self) -> int:
        return self._pacing.num_skipped + (0 if self._watcher is None else self._watcher.num_skipped)

    def _take(self, text: str | None) -> None:
        message = protocol.read_message(text)
        if isinstance(message, Ack):
            self._pacing.acknowledge(message.sequence, self._clock())
        else:
            self._line_up(message)

    def _line_up(self, message: Command | Watch) -> None:
        if self._waiting.full():
            raise Close(protocol.BAD_MESSAGE, f"more than {self._limits.max_waiting} commands unanswered")
        if isinstance(message, Watch):
            if self._has_asked_to_watch:
                raise Close(protocol.BAD_MESSAGE, "watch may be said once a connection")
            self._has_asked_to_watch = True
        self._waiting.put_nowait(message)

    async def _work(self) -> None:
        while True:
            message = await self._waiting.get()
            if isinstance(message, Watch):
                await self._begin(message)
            elif isinstance(message, Operator):
                if message != self._told:
                    await self._say_hello()
            else:
                await self._send(await self._answer(message))

    async def _say_hello(self) -> None:
        hello = await in_thread(self._greet)
        await self._send(hello)
        self._told = Operator(hello.user, hello.may_steer)

    async def _begin(self, watch: Watch) -> None:
        await self._say_hello()
        try:
            rows = await read_history(self._services.redis, self.pool, since=watch.since)
        except (RedisError, OSError) as error:
            logger.warning("No history of pool %s for a page: %s", self.pool, error)
            rows = []
        await self._send(History(points=[msgspec.Raw(row) for row in rows]))
        self._is_watching = True

    async def _answer(self, command: Command) -> ServerMessage:
        try:
            return await in_thread(self._carry_out, command)
        except ENDINGS:
            raise
        except Exception:
            logger.exception("A command to pool %s failed", self.pool)
            return Refused(id=command.id, code="internal_error", message="the server failed; its log says why")

    async def _show(self, watcher: Watcher) -> None:
        while True:
            frame = await watcher.next()
            if self._is_watching and self._pacing.take_place(frame.sequence, self._clock()):
                await self._send_text(frame.text)

    def _note_operator(self, operator: Operator) -> None:
        """Tell the page of rights that changed."""
        if self._told in (None, operator) or self._waiting.full():
            return
        # In line with the commands: a hello's versions are never older than those of an answer before it.
        self._waiting.put_nowait(operator)

    async def _send(self, message: ServerMessage) -> None:
        await self._send_text(protocol.encode(message).decode())

    # --- on a thread, with a database connection that is given back afterwards

    def _greet(self) -> Hello:
        return self._commands.greet(self._read_operator())

    def _carry_out(self, command: Command) -> ServerMessage:
        return self._commands.answer(command, self._read_operator(), address=self._address)
