"""The websocket of a Live page: what `dashboard.protocol` says, from the handshake to the close."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from channels.db import database_sync_to_async
from django.conf import settings
from redis.exceptions import RedisError

from dashboard import protocol
from dashboard.commands import Command, Commands
from dashboard.origin import Receive, Send
from dashboard.pacing import Pacing
from dashboard.protocol import Ack, BadMessage, Hello, History, Refused, ServerMessage, Watch
from dashboard.services import ConsoleServices, services_in
from dashboard.sessions import NotAllowed, Operator, SignedOut, read_operator
from serving.contracts.errors import PoolNotFound
from serving.contracts.ids import PoolName
from serving.telemetry.feed import FeedClosed, Watcher, read_history

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one page may cost. `max_unacked` counts frames; `max_waiting` commands that are not answered yet."""

    max_unacked: int = 8
    slow_seconds: float = 20.0
    recheck_seconds: float = 10.0
    tick_seconds: float = 1.0
    max_waiting: int = 32


class LiveConsumer:
    """The ASGI application of `/console/live/<pool>`. Owns nothing that changes: each connection is a page of its own.

    Written against ASGI itself, since Channels' consumers subscribe to the channel layer once a connection; here one
    feed a process does, and pages watch it.
    """

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or Limits()
        self._clock = clock

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection until it ends."""
        if (await receive())["type"] != "websocket.connect":
            return
        # Only an accepted socket can be closed with a code that the page can read.
        await send({"type": "websocket.accept"})
        page = _Page(scope, receive, send, limits=self._limits, clock=self._clock)
        try:
            code, reason = await page.serve()
        except Exception:
            logger.exception("A page of pool %s failed", page.pool)
            code, reason = protocol.FAILED, "the server failed"
        if code is not None:
            await send({"type": "websocket.close", "code": code, "reason": reason[:100]})


class _Close(Exception):
    """Ends the connection: `code` None where the page is gone already."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Page:
    """Owns one open connection, on the server's loop: four tasks that live as long as it does."""

    def __init__(
        self,
        scope: dict[str, Any],
        receive: Receive,
        send: Send,
        *,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        services: ConsoleServices = services_in(scope)
        self.pool = PoolName(scope["url_route"]["kwargs"]["pool"])
        self._session_key: str | None = scope["cookies"].get(settings.SESSION_COOKIE_NAME)
        self._receive = receive
        self._send_event = send
        self._limits = limits
        self._clock = clock
        self._redis = services.redis
        self._feed = services.feed
        self._commands = Commands(self.pool, services.blocking_redis)
        self._pacing = Pacing(max_unacked=limits.max_unacked, slow_seconds=limits.slow_seconds)
        self._waiting: asyncio.Queue[Command | Watch] = asyncio.Queue(limits.max_waiting)
        self._is_watching = False

    async def serve(self) -> tuple[int | None, str]:
        """Serve the page until one side ends it; gives the close code (None: the page is gone) and a reason."""
        try:
            await _in_thread(self._greet)
        except (SignedOut, NotAllowed, PoolNotFound) as refusal:
            return _code_of(refusal), str(refusal)
        watcher = self._feed.watch(self.pool)
        try:
            await _run_until_one_ends(self._listen(), self._work(), self._show(watcher), self._look_after(watcher))
        except _Close as close:
            return close.code, close.reason
        except (SignedOut, NotAllowed, PoolNotFound) as refusal:
            return _code_of(refusal), str(refusal)
        finally:
            watcher.close()
        return None, ""

    async def _listen(self) -> None:
        while (event := await self._receive())["type"] != "websocket.disconnect":
            try:
                message = protocol.read_message(event.get("text"))
            except BadMessage as bad:
                raise _Close(protocol.BAD_MESSAGE, str(bad)) from None
            if isinstance(message, Ack):
                self._pacing.acknowledge(message.sequence, self._clock())
            elif self._waiting.full():
                raise _Close(protocol.BAD_MESSAGE, f"more than {self._limits.max_waiting} commands unanswered")
            else:
                self._waiting.put_nowait(message)

    async def _work(self) -> None:
        while True:
            message = await self._waiting.get()
            if isinstance(message, Watch):
                await self._begin(message)
            else:
                await self._send(await self._answer(message))

    async def _begin(self, watch: Watch) -> None:
        await self._send(await _in_thread(self._greet))
        try:
            rows = await read_history(self._redis, self.pool, since=watch.since)
        except (RedisError, OSError) as error:
            logger.warning("No history of pool %s for a page: %s", self.pool, error)
            rows = []
        await self._send(History(points=[msgspec.Raw(row) for row in rows]))
        self._is_watching = True

    async def _answer(self, command: Command) -> ServerMessage:
        try:
            return await _in_thread(self._carry_out, command)
        except (SignedOut, NotAllowed):
            raise
        except Exception:
            logger.exception("A command to pool %s failed", self.pool)
            return Refused(id=command.id, code="internal_error", message="the server failed; its log says why")

    async def _show(self, watcher: Watcher) -> None:
        while True:
            try:
                frame = await watcher.next()
            except FeedClosed:
                raise _Close(protocol.RESTARTING, "the server stops") from None
            if self._is_watching and self._pacing.take_place(frame.sequence, self._clock()):
                await self._send_event({"type": "websocket.send", "text": frame.text})

    async def _look_after(self, watcher: Watcher) -> None:
        """Close a page that is too slow, and one whose session ended although it asks for nothing."""
        checked_at = self._clock()
        while True:
            await asyncio.sleep(self._limits.tick_seconds)
            now = self._clock()
            if self._pacing.is_too_slow(now):
                num_skipped = self._pacing.num_skipped + watcher.num_skipped
                raise _Close(protocol.TOO_SLOW, f"nothing acknowledged in time; {num_skipped} frames skipped")
            if now - checked_at >= self._limits.recheck_seconds:
                checked_at = now
                await self._recheck()

    async def _recheck(self) -> None:
        try:
            await _in_thread(self._read_operator)
        except (SignedOut, NotAllowed):
            raise
        except Exception as error:
            # While the database is away there is all the more to watch; commands fail by themselves.
            logger.warning("A session cannot be checked: %s", error)

    async def _send(self, message: ServerMessage) -> None:
        await self._send_event({"type": "websocket.send", "text": protocol.encode(message).decode()})

    # --- on a thread, with a database connection that is given back afterwards

    def _read_operator(self) -> Operator:
        return read_operator(self._session_key)

    def _greet(self) -> Hello:
        return self._commands.greet(self._read_operator())

    def _carry_out(self, command: Command) -> ServerMessage:
        return self._commands.answer(command, self._read_operator())


def _code_of(refusal: Exception) -> int:
    if isinstance(refusal, SignedOut):
        return protocol.SIGNED_OUT
    return protocol.NOT_ALLOWED if isinstance(refusal, NotAllowed) else protocol.NO_SUCH_POOL


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    # Not thread-sensitive: one slow query must not hold up every other page.
    result: T = await database_sync_to_async(function, thread_sensitive=False)(*args)
    return result


async def _run_until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all; when the first ends, end the others and raise what it raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(tasks)
    for task in done:
        task.result()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    # On Python 3.11 the Redis client can lose a cancellation; so it is repeated until it is heard.
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=0.1)
    # What a second one raised on its way out is no news, and must not be reported as an error that nobody took.
    await asyncio.gather(*tasks, return_exceptions=True)
