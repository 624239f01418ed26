"""Daphne's server under our own signal handling: bounded requests in, and a stop that drains.

Left to itself daphne cancels every request when it is told to stop. Here a first SIGTERM or SIGINT lets the running
ones end, refuses new ones (the application does, once `Lifecycle.begin_drain` was called), and only then stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from daphne.http_protocol import HTTPFactory
from daphne.server import Server
from daphne.server import reactor as _daphne_reactor
from twisted.logger import globalLogBeginner

from serving.config.http_bounds import BoundedChannel, BoundedRequest, HttpBounds
from serving.config.websocket_bounds import BoundedWebSocket, BoundedWebSocketFactory, WebSocketBounds

logger = logging.getLogger(__name__)
reactor: Any = _daphne_reactor

_LAST_WORDS_SECONDS = 5.0
"""How long requests that were ended by us may take to send their last event."""
_FAREWELL_SECONDS = 2.0
"""How long clients of websockets may take to agree to a close, and applications to end after that."""
_CANCEL_SECONDS = 5.0
"""How long what is cancelled may take to clean up after itself."""
_FLUSH_SECONDS = 0.1
"""What the last answers' bytes get to leave the sockets' buffers before the sockets are closed."""


_RESTARTING = 1012
"""The close code of a service that restarts: clients connect again."""


class AddressInUse(Exception):
    """Nobody can listen at this address; the message says which and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """What the server tells its application: `begin_drain` at the first stop signal, `end_requests` when their time
    is up (it makes them end with an error event), `close` when nothing runs any more; and, by `note_refusal`, the code
    of each request that it refused itself."""

    begin_drain: Callable[[], None]
    end_requests: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]
    drain_seconds: float
    note_refusal: Callable[[str], None]


def open_listener(host: str, port: int) -> socket.socket:
    """A bound, listening socket. Raises `AddressInUse` where the address is taken or is none of this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressInUse(f"cannot listen on {host}: {error.strerror or error}; set HOST") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.settimeout(0)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"port {port} on {host} is taken; set PORT to another") from None
        raise AddressInUse(f"cannot listen on port {port} of {host}: {error.strerror}; set HOST or PORT") from None
    return listener


def server_loop() -> asyncio.AbstractEventLoop:
    """The event loop that the reactor runs: what the application opens before `WebServer.run` belongs on it."""
    loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop
    asyncio.set_event_loop(loop)
    return loop


class _BoundedFactory(HTTPFactory):
    """Makes a bounded channel of every connection. Owned by the server, on the reactor's thread."""

    protocol = BoundedChannel

    def __init__(self, server: WebServer, *, bounds: HttpBounds, note_refusal: Callable[[str], None]) -> None:
        super().__init__(server)
        self.bounds = bounds
        self.note_refusal = note_refusal
        self.timeOut = bounds.idle_seconds

    def buildProtocol(self, address: Any) -> Any:
        """A channel for a new connection."""
        channel = BoundedChannel()
        channel.factory = self
        channel.callLater = reactor.callLater
        channel.timeOut = self.timeOut
        return channel

    def acceptableProtocols(self) -> list[bytes]:
        """HTTP/1.1 alone: the bounds are kept by its channel."""
        return [b"http/1.1"]


class WebServer(Server):
    """Owns the connections and the stop of a web process, on the reactor's thread."""

    def __init__(
        self,
        application: Any,
        *,
        listener: socket.socket,
        bounds: HttpBounds,
        lifecycle: Lifecycle,
        websocket_bounds: WebSocketBounds | None = None,
    ) -> None:
        websocket_bounds = websocket_bounds or WebSocketBounds()
        super().__init__(
            application,
            endpoints=["adopted"],
            signal_handlers=False,
            request_buffer_size=65_536,
            server_name="",
            verbosity=0,
            websocket_timeout=-1,
            websocket_connect_timeout=websocket_bounds.accept_seconds,
            ping_interval=websocket_bounds.ping_seconds,
        )
        self.connections: dict[Any, dict[str, Any]] = {}
        self._listener = listener
        self._bounds = bounds
        self._websocket_bounds = websocket_bounds
        self._lifecycle = lifecycle
        self._hasten = asyncio.Event()
        self._drain: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Serve until a stop signal has been obeyed."""
        loop = server_loop()
        self.http_factory = _BoundedFactory(self, bounds=self._bounds, note_refusal=self._lifecycle.note_refusal)
        self.ws_factory = BoundedWebSocketFactory(self, self._websocket_bounds)
        with contextlib.suppress(AssertionError):  # twisted's log begins once a process
            globalLogBeginner.beginLoggingTo([lambda _: None], redirectStandardIO=False, discardBuffer=True)
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        reactor.adoptStreamPort(self._listener.fileno(), self._listener.family, self.http_factory)
        self._listener.close()
        reactor.addSystemEventTrigger("before", "shutdown", self.kill_all_applications)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        reactor.run(installSignalHandlers=False)

    def request_stop(self) -> None:
        """Begin to drain; asked again, end what still runs at once."""
        if self._drain is not None:
            self._hasten.set()
            return
        self._lifecycle.begin_drain()
        self._drain = asyncio.ensure_future(self._drain_and_stop())

    @property
    def num_active_requests(self) -> int:
        """HTTP requests that the application has not finished."""
        return sum(
            isinstance(protocol, BoundedRequest) and _is_running(details)
            for protocol, details in self.connections.items()
        )

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        """Begin to run the application for one request or websocket."""
        # Daphne lets any client set the root path by a header.
        queue = super().create_application(protocol, {**scope, "root_path": self.root_path})
        if isinstance(protocol, BoundedWebSocket):
            self.connections[protocol]["application_instance"].add_done_callback(protocol.application_ended)
        return queue

    def protocol_disconnected(self, protocol: Any) -> None:
        """Note that a connection is gone. Daphne says so twice of a refused handshake, and may have forgotten it."""
        if protocol in self.connections:
            super().protocol_disconnected(protocol)

    def kill_all_applications(self) -> Any:
        """Cancel what is left when the reactor stops: open websockets, and requests that would not end."""
        for details in self.connections.values():
            details.setdefault("application_instance", _finished_future())
        return super().kill_all_applications()

    async def _drain_and_stop(self) -> None:
        try:
            if await self._wait_until_idle(self._lifecycle.drain_seconds, until=self._hasten):
                logger.info("Drained: no request was cut short")
            else:
                logger.warning("Ending %d requests that outlasted the drain", self.num_active_requests)
            await self._lifecycle.end_requests()
            await self._wait_until_idle(_LAST_WORDS_SECONDS)
            await self._end_websockets()
            await self._cancel_applications()
            await self._lifecycle.close()
            await asyncio.sleep(_FLUSH_SECONDS)
        except Exception:
            logger.exception("Draining failed; stopping all the same")
        finally:
            reactor.stop()

    async def _end_websockets(self) -> None:
        """Close those that the application did not close itself, and wait for both ends to take note."""
        sockets = [protocol for protocol in self.connections if isinstance(protocol, BoundedWebSocket)]
        running = self._running_applications(sockets)
        for protocol in sockets:
            protocol.close(_RESTARTING, "the server restarts")
        if running:
            await asyncio.wait(running, timeout=_FAREWELL_SECONDS)

    async def _cancel_applications(self) -> None:
        """End what is left while all that it needs for its cleaning up still is there.

        Repeats itself, since what is cancelled may lose a cancellation (redis-py does on Python 3.11).
        """
        deadline = asyncio.get_running_loop().time() + _CANCEL_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            running = self._running_applications(self.connections)
            if not running:
                return
            for application in running:
                application.cancel()
            await asyncio.wait(running, timeout=0.5)

    def _running_applications(self, protocols: Iterable[Any]) -> list[asyncio.Future[None]]:
        each = [self.connections[protocol] for protocol in protocols]
        return [details["application_instance"] for details in each if _is_running(details)]

    async def _wait_until_idle(self, seconds: float, *, until: asyncio.Event | None = None) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while self.num_active_requests:
            if asyncio.get_running_loop().time() >= deadline or (until is not None and until.is_set()):
                return False
            await asyncio.sleep(0.05)
        return True


def _is_running(details: dict[str, Any]) -> bool:
    application = details.get("application_instance")
    return application is not None and not application.done()


def _finished_future() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_event_loop().create_future()
    future.set_result(None)
    return future
