"""The websocket of a Live page: what `dashboard.protocol` says, from the handshake to the close."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from django.conf import settings
from redis.exceptions import RedisError

from dashboard import protocol
from dashboard.commands import Command, Commands
from dashboard.origin import Receive, Send
from dashboard.pacing import Pacing
from dashboard.protocol import Ack, BadMessage, Hello, History, Refused, ServerMessage, Watch
from dashboard.rechecks import ENDINGS, Rechecks
from dashboard.services import ConsoleServices, services_in
from dashboard.sessions import NotAllowed, Operator, SignedOut, read_operator, read_watcher
from dashboard.threads import in_thread
from serving.contracts.ids import PoolName
from serving.telemetry.feed import FeedClosed, Watcher, read_history
from serving.tuning import selectors

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one page may cost. `max_unacked` counts frames; `max_waiting` commands that are not answered yet.

    A page is checked anew at most `recheck_seconds` after the last time; a check that takes longer than
    `recheck_timeout_seconds` is left out.
    """

    max_unacked: int = 8
    slow_seconds: float = 20.0
    recheck_seconds: float = 10.0
    recheck_timeout_seconds: float = 5.0
    tick_seconds: float = 1.0
    max_waiting: int = 32


class LiveConsumer:
    """The ASGI application of `/console/live/<pool>`. Owns what all its pages are checked with; beyond that, each
    connection is a page of its own.

    Written against ASGI itself, since Channels' consumers subscribe to the channel layer once a connection; here one
    feed a process does, and pages watch it.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rechecks: Rechecks | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._rechecks = rechecks or Rechecks()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection until it ends."""
        if (await receive())["type"] != "websocket.connect":
            return
        # Only an accepted socket can be closed with a code that the page can read.
        await send({"type": "websocket.accept"})
        page = _Page(scope, receive, send, limits=self._limits, clock=self._clock, rechecks=self._rechecks)
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
    """Owns one open connection, on the server's loop: five tasks that live as long as it does."""

    def __init__(
        self,
        scope: dict[str, Any],
        receive: Receive,
        send: Send,
        *,
        limits: Limits,
        clock: Callable[[], float],
        rechecks: Rechecks,
    ) -> None:
        services: ConsoleServices = services_in(scope)
        self.pool = PoolName(scope["url_route"]["kwargs"]["pool"])
        self._session_key: str | None = scope["cookies"].get(settings.SESSION_COOKIE_NAME)
        self._receive = receive
        self._send_event = send
        self._limits = limits
        self._clock = clock
        self._rechecks = rechecks
        self._redis = services.redis
        self._feed = services.feed
        self._commands = Commands(self.pool, services.blocking_redis)
        self._pacing = Pacing(max_unacked=limits.max_unacked, slow_seconds=limits.slow_seconds)
        self._waiting: asyncio.Queue[Command | Watch | Operator] = asyncio.Queue(limits.max_waiting)
        self._has_asked_to_watch = False
        self._is_watching = False
        self._told: Operator | None = None

    async def serve(self) -> tuple[int | None, str]:
        """Serve the page until one side ends it; gives the close code (None: the page is gone) and a reason."""
        try:
            await in_thread(self._admit)
        except ENDINGS as refusal:
            return _code_of(refusal), str(refusal)
        watcher = self._feed.watch(self.pool)
        try:
            await _run_until_one_ends(
                self._listen(),
                self._work(),
                self._show(watcher),
                self._end_when_slow(watcher),
                self._recheck_now_and_then(),
            )
        except _Close as close:
            return close.code, close.reason
        except ENDINGS as refusal:
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
            else:
                self._line_up(message)

    def _line_up(self, message: Command | Watch) -> None:
        if self._waiting.full():
            raise _Close(protocol.BAD_MESSAGE, f"more than {self._limits.max_waiting} commands unanswered")
        if isinstance(message, Watch):
            if self._has_asked_to_watch:
                raise _Close(protocol.BAD_MESSAGE, "watch may be said once a connection")
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
            rows = await read_history(self._redis, self.pool, since=watch.since)
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
            try:
                frame = await watcher.next()
            except FeedClosed:
                raise _Close(protocol.RESTARTING, "the server stops") from None
            if self._is_watching and self._pacing.take_place(frame.sequence, self._clock()):
                await self._send_event({"type": "websocket.send", "text": frame.text})

    async def _end_when_slow(self, watcher: Watcher) -> None:
        while True:
            await asyncio.sleep(self._limits.tick_seconds)
            if self._pacing.is_too_slow(self._clock()):
                num_skipped = self._pacing.num_skipped + watcher.num_skipped
                raise _Close(protocol.TOO_SLOW, f"nothing acknowledged in time; {num_skipped} frames skipped")

    async def _recheck_now_and_then(self) -> None:
        due_at = self._clock() + self._rechecks.pause(self._limits.recheck_seconds)
        while True:
            await asyncio.sleep(self._limits.tick_seconds)
            if self._clock() >= due_at:
                await self._recheck()
                due_at = self._clock() + self._rechecks.pause(self._limits.recheck_seconds)

    async def _recheck(self) -> None:
        """End a page whose session or pool ended although it asks for nothing, and tell it of rights that changed."""
        # Without an answer the page stays: while the database is away there is all the more to watch.
        operator = await self._rechecks.run(self._check_again, within_seconds=self._limits.recheck_timeout_seconds)
        if operator is None or self._told in (None, operator) or self._waiting.full():
            return
        # In line with the commands: a hello's versions are never older than those of an answer before it.
        self._waiting.put_nowait(operator)

    async def _send(self, message: ServerMessage) -> None:
        await self._send_event({"type": "websocket.send", "text": protocol.encode(message).decode()})

    # --- on a thread, with a database connection that is given back afterwards

    def _admit(self) -> None:
        read_watcher(self._session_key)
        selectors.find_pool(self.pool)

    def _check_again(self) -> Operator:
        operator = read_operator(self._session_key)
        selectors.find_pool(self.pool)
        return operator

    def _greet(self) -> Hello:
        return self._commands.greet(read_operator(self._session_key))

    def _carry_out(self, command: Command) -> ServerMessage:
        return self._commands.answer(command, read_operator(self._session_key))


def _code_of(refusal: Exception) -> int:
    if isinstance(refusal, SignedOut):
        return protocol.SIGNED_OUT
    return protocol.NOT_ALLOWED if isinstance(refusal, NotAllowed) else protocol.NO_SUCH_POOL


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
