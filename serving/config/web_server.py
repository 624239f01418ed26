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
from collections.abc import Awaitable, Callable
from typing import Any

from daphne.http_protocol import HTTPFactory
from daphne.server import Server
from daphne.server import reactor as _daphne_reactor
from daphne.ws_protocol import WebSocketFactory
from twisted.logger import globalLogBeginner

from serving.config.http_bounds import BoundedChannel, BoundedRequest, HttpBounds

logger = logging.getLogger(__name__)
reactor: Any = _daphne_reactor

_LAST_WORDS_SECONDS = 5.0
"""How long requests that were ended by us may take to send their last event."""
_FLUSH_SECONDS = 0.1
"""What the last answers' bytes get to leave the sockets' buffers before the sockets are closed."""


class AddressInUse(Exception):
    """Nobody can listen at this address; the message says which and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """What the server tells its application: `begin_drain` at the first stop signal, `end_requests` when their time
    is up (it makes them end with an error event), `close` when nothing runs any more."""

    begin_drain: Callable[[], None]
    end_requests: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]
    drain_seconds: float


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

    def __init__(self, server: WebServer, bounds: HttpBounds) -> None:
        super().__init__(server)
        self.bounds = bounds
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

    def __init__(self, application: Any, *, listener: socket.socket, bounds: HttpBounds, lifecycle: Lifecycle) -> None:
        super().__init__(
            application,
            endpoints=["adopted"],
            signal_handlers=False,
            request_buffer_size=65_536,
            server_name="",
            verbosity=0,
        )
        self.connections: dict[Any, dict[str, Any]] = {}
        self._listener = listener
        self._bounds = bounds
        self._lifecycle = lifecycle
        self._hasten = asyncio.Event()
        self._drain: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Serve until a stop signal has been obeyed."""
        loop = server_loop()
        self.http_factory = _BoundedFactory(self, self._bounds)
        self.ws_factory = WebSocketFactory(self, server="footplate")
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=False,
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_frame_size,
        )
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
            await self._lifecycle.close()
            await asyncio.sleep(_FLUSH_SECONDS)
        except Exception:
            logger.exception("Draining failed; stopping all the same")
        finally:
            reactor.stop()

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
