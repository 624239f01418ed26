"""The websockets of pages: who is let in, who may stay, and what a page costs that takes nothing in."""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from django.conf import settings

from dashboard import protocol
from dashboard.origin import Receive, Send
from dashboard.pacing import Pacing
from dashboard.protocol import BadMessage
from dashboard.rechecks import ENDINGS, Rechecks
from dashboard.services import ConsoleServices, services_in
from dashboard.sessions import NotAllowed, Operator, SignedOut, read_operator, read_watcher
from dashboard.threads import in_thread
from serving.contracts.ids import PoolName
from serving.telemetry.feed import FeedClosed
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


class Close(Exception):
    """Ends the connection: `code` None where the page is gone already."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class PageSocket(abc.ABC):
    """Owns one open connection of a page, on the server's loop, and the tasks that live as long as it does.

    It is let in where it may watch its pool, checked again now and then, and closed where it acknowledges nothing.
    What a kind of page is told and may ask for is its subclass's.
    """

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
        self.pool = PoolName(scope["url_route"]["kwargs"]["pool"])
        self._services: ConsoleServices = services_in(scope)
        self._session_key: str | None = scope["cookies"].get(settings.SESSION_COOKIE_NAME)
        self._address: str = (scope.get("client") or ("",))[0]
        self._receive = receive
        self._send_event = send
        self._limits = limits
        self._clock = clock
        self._rechecks = rechecks
        self._pacing = Pacing(max_unacked=limits.max_unacked, slow_seconds=limits.slow_seconds)

    async def serve(self) -> tuple[int | None, str]:
        """Serve the page until one side ends it; gives the close code (None: the page is gone) and a reason."""
        try:
            await in_thread(self._admit)
        except ENDINGS as refusal:
            return _code_of(refusal), str(refusal)
        self._open()
        try:
            await _run_until_one_ends(
                self._listen(), self._end_when_slow(), self._recheck_now_and_then(), *self._parts()
            )
        except Close as close:
            return close.code, close.reason
        except FeedClosed:
            return protocol.RESTARTING, "the server stops"
        except ENDINGS as refusal:
            return _code_of(refusal), str(refusal)
        finally:
            self._shut()
        return None, ""

    # --- what a kind of page adds

    @abc.abstractmethod
    def _open(self) -> None:
        """The page was let in."""

    @abc.abstractmethod
    def _shut(self) -> None:
        """The connection ended."""

    @abc.abstractmethod
    def _parts(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What else runs while the connection is open; what they raise ends it."""

    @abc.abstractmethod
    def _take(self, text: str | None) -> None:
        """The page sent this (None where it was binary). Raises `BadMessage` and `Close`; never blocks."""

    @abc.abstractmethod
    def _note_operator(self, operator: Operator) -> None:
        """Whose page it is, as a check has just found."""

    @property
    def _num_skipped(self) -> int:
        """Frames that the page was not sent."""
        return self._pacing.num_skipped

    # --- what all pages have

    async def _listen(self) -> None:
        while (event := await self._receive())["type"] != "websocket.disconnect":
            try:
                self._take(event.get("text"))
            except BadMessage as bad:
                raise Close(protocol.BAD_MESSAGE, str(bad)) from None

    async def _end_when_slow(self) -> None:
        while True:
            await asyncio.sleep(self._limits.tick_seconds)
            if self._pacing.is_too_slow(self._clock()):
                raise Close(protocol.TOO_SLOW, f"nothing acknowledged in time; {self._num_skipped} frames skipped")

    async def _recheck_now_and_then(self) -> None:
        due_at = self._clock() + self._rechecks.pause(self._limits.recheck_seconds)
        while True:
            await asyncio.sleep(self._limits.tick_seconds)
            if self._clock() >= due_at:
                await self._recheck()
                due_at = self._clock() + self._rechecks.pause(self._limits.recheck_seconds)

    async def _recheck(self) -> None:
        """End a page whose session or pool ended although it asks for nothing."""
        # Without an answer the page stays: while the database is away there is all the more to watch.
        operator = await self._rechecks.run(self._check_again, within_seconds=self._limits.recheck_timeout_seconds)
        if operator is not None:
            self._note_operator(operator)

    async def _send_text(self, text: str) -> None:
        await self._send_event({"type": "websocket.send", "text": text})

    # --- on a thread, with a database connection that is given back afterwards

    def _read_operator(self) -> Operator:
        return read_operator(self._session_key)

    def _admit(self) -> None:
        read_watcher(self._session_key)
        selectors.find_configured_pool(self.pool)

    def _check_again(self) -> Operator:
        operator = self._read_operator()
        selectors.find_configured_pool(self.pool)
        return operator


class PageConsumer:
    """The ASGI application of one kind of page. Owns what all its pages are checked with; beyond that, each connection
    is a page of its own.

    Written against ASGI itself, since Channels' consumers subscribe to the channel layer once a connection; here one
    feed a process does, and pages watch it.
    """

    def __init__(
        self,
        page: Callable[..., PageSocket],
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rechecks: Rechecks | None = None,
    ) -> None:
        self._page = page
        self._limits = limits or Limits()
        self._clock = clock
        self._rechecks = rechecks or Rechecks()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection until it ends."""
        if (await receive())["type"] != "websocket.connect":
            return
        # Only an accepted socket can be closed with a code that the page can read.
        await send({"type": "websocket.accept"})
        page = self._page(scope, receive, send, limits=self._limits, clock=self._clock, rechecks=self._rechecks)
        try:
            code, reason = await page.serve()
        except Exception:
            logger.exception("A page of pool %s failed", page.pool)
            code, reason = protocol.FAILED, "the server failed"
        if code is not None:
            await send({"type": "websocket.close", "code": code, "reason": reason[:100]})


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
