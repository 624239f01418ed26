"""What one websocket may cost: bounds on messages, on what waits unread or unsent, and on silence.

Daphne keeps whatever a client sends until the application reads it, and whatever the application sends until the
client reads it. Here a connection that exceeds a bound is closed.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from autobahn.util import encode_truncate
from autobahn.websocket.compress import PerMessageDeflateOffer, PerMessageDeflateOfferAccept
from daphne.server import reactor  # never twisted's own: importing daphne's server is what installs the right one
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol

from serving.config.http_bounds import error_body

_NO_CODE_GIVEN = 1005
_TOO_MUCH = 1008
_APPLICATION_FAILED = 1011
_LONGEST_REASON_BYTES = 123
_WINDOW_BITS = 12
_MEMORY_LEVEL = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketBounds:
    """Sizes in bytes, times in seconds. `max_unread_messages` wait for the application; `max_unsent_bytes` may wait for
    the client beyond what the socket takes. `accept_seconds` is how long the application may take to accept or refuse,
    `close_seconds` how long the client may take to answer a close. After `ping_seconds` of silence the client is asked
    whether it lives, and has `pong_seconds` to say so."""

    max_message_bytes: int = 65_536
    max_fragments: int = 64
    max_frames_a_second: int = 500
    max_unread_messages: int = 64
    max_unsent_bytes: int = 4_194_304
    accept_seconds: float = 10.0
    close_seconds: float = 3.0
    ping_seconds: float = 20.0
    pong_seconds: float = 10.0


class BoundedWebSocket(WebSocketProtocol):
    """One websocket, on the reactor's thread: keeps the bounds of its factory, and closes as ASGI asks.

    Registered as its transport's producer only to learn when the client does not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_asked = False
        self._num_fragments = 0
        self._second_began_at = 0.0
        self._num_frames = 0
        self._num_unsent_bytes: int | None = None
        """Sent since the transport's buffer was full; None while it is not."""

    @property
    def bounds(self) -> WebSocketBounds:
        """The bounds in force."""
        bounds: WebSocketBounds = self.factory.bounds
        return bounds

    # --- from the application ---

    def handle_reply(self, message: dict[str, Any]) -> None:
        """Do what the application says. What it sends after the end is dropped: it hears of the end by itself."""
        if message["type"] == "websocket.close" and self.state != self.STATE_CONNECTING:
            self.close(message.get("code") or 1000, message.get("reason") or "")
        elif message["type"] != "websocket.send" or self.state in (self.STATE_CONNECTING, self.STATE_OPEN):
            super().handle_reply(message)

    def close(self, code: int, reason: str) -> None:
        """Begin to close, where it is open; the client has `close_seconds` to agree."""
        if self.state == self.STATE_OPEN:
            # Not `sendClose`, which knows no codes from 1001 to 2999, as 1012 is for a service that restarts.
            self.sendCloseFrame(code=code, reasonUtf8=encode_truncate(reason, _LONGEST_REASON_BYTES))

    def application_ended(self, application: asyncio.Future[None]) -> None:
        """Nobody will read or write any more: close what the application left open."""
        if self.state == self.STATE_OPEN:
            self.close(_APPLICATION_FAILED, "")
        elif self.state == self.STATE_CONNECTING and not application.cancelled() and application.exception() is None:
            self.serverReject()  # an exception is for the server to log, and to answer with 500

    def serverReject(self) -> None:
        """Refuse the handshake, or cut the connection where the application's own answer to it made no sense."""
        if hasattr(self, "handshake_deferred"):
            super().serverReject()
        else:
            self.dropConnection(abort=True)

    def sendMessage(self, payload: bytes, isBinary: bool = False, **options: Any) -> None:
        """Send a message of any size: Autobahn bounds what is sent by the bound on what is received."""
        self.maxMessagePayloadSize = 0
        try:
            super().sendMessage(payload, isBinary, **options)
        finally:
            self.maxMessagePayloadSize = self.bounds.max_message_bytes

    # --- from the client ---

    def connectionMade(self) -> None:
        """Take the connection over from HTTP."""
        # The HTTP channel would stop reading while the client does not read, and so never hear that it went.
        self.transport.unregisterProducer()
        super().connectionMade()
        self.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        """Parse what arrived: the whole handshake at first, and nothing more until it is answered."""
        if self.state == self.STATE_CONNECTING and self._is_asked:
            self.dropConnection(abort=True)
            return
        self._is_asked = True
        super().dataReceived(data)

    def onFrameBegin(self) -> None:
        """A frame of any kind begins."""
        now = reactor.seconds()
        if now - self._second_began_at >= 1:
            self._second_began_at, self._num_frames = now, 0
        self._num_frames += 1
        super().onFrameBegin()
        if self._num_frames > self.bounds.max_frames_a_second:
            self._refuse("too many frames a second")

    def onMessageBegin(self, isBinary: bool) -> None:
        """A message begins."""
        self._num_fragments = 0
        super().onMessageBegin(isBinary)

    def onMessageFrameBegin(self, length: int) -> None:
        """A fragment of a message begins."""
        super().onMessageFrameBegin(length)
        self._num_fragments += 1
        if self._num_fragments > self.bounds.max_fragments:
            self._refuse("too many fragments")

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """A message is complete."""
        if self.application_queue.qsize() >= self.bounds.max_unread_messages:
            self._refuse("too many messages at once")
        else:
            super().onMessage(payload, isBinary)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """The connection is gone: tell the application, where one was ever asked."""
        if hasattr(self, "application_queue"):
            super().onClose(wasClean, _NO_CODE_GIVEN if code is None else code, reason)

    def _refuse(self, reason: str) -> None:
        self.wasNotCleanReason = reason
        self.close(_TOO_MUCH, reason)
        self.dropConnection(abort=False)

    # --- to the client ---

    def sendHttpErrorResponse(self, code: int, reason: str, responseHeaders: Any = None) -> None:
        """Refuse the handshake, in the API's error shape."""
        body = error_body(code, reason)
        head = (
            b"HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (code, len(body))
        )
        self.sendData(head + body)

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:
        """Write bytes, unless too many wait already for a client that does not read."""
        if self._num_unsent_bytes is not None:
            self._num_unsent_bytes += len(data)
            if self._num_unsent_bytes > self.bounds.max_unsent_bytes:
                self.dropConnection(abort=True)
                return
        super().sendData(data, sync, chopsize)

    def pauseProducing(self) -> None:
        """The transport's buffer is full."""
        if self._num_unsent_bytes is None:
            self._num_unsent_bytes = 0

    def resumeProducing(self) -> None:
        """The transport's buffer is empty."""
        self._num_unsent_bytes = None

    def stopProducing(self) -> None:
        """The connection is gone, as the connection's own methods tell."""


class BoundedWebSocketFactory(WebSocketFactory):
    """Makes a bounded websocket of every upgraded connection. Owned by the server, on the reactor's thread."""

    protocol = BoundedWebSocket

    def __init__(self, server: Any, bounds: WebSocketBounds) -> None:
        super().__init__(server, server="")
        self.bounds = bounds
        self.setProtocolOptions(
            # Fragments are frames too: one bound serves for both.
            maxMessagePayloadSize=bounds.max_message_bytes,
            maxFramePayloadSize=bounds.max_message_bytes,
            # Daphne refuses, which this is only to make sure of; it looks every two seconds.
            openHandshakeTimeout=bounds.accept_seconds + 5,
            closeHandshakeTimeout=bounds.close_seconds,
            autoPingTimeout=bounds.pong_seconds,
            # Who breaks a rule is told which, before the connection is cut.
            failByDrop=False,
            webStatus=False,
            allowNullOrigin=False,
            perMessageCompressionAccept=_accept_compression,
        )


def _accept_compression(offers: Sequence[Any]) -> PerMessageDeflateOfferAccept | None:
    """Frames resemble each other: compressed with what went before, one is a fraction of its size. A small window keeps
    a connection at 40 KiB instead of 100."""
    for offer in offers:
        if isinstance(offer, PerMessageDeflateOffer):
            return PerMessageDeflateOfferAccept(  # type: ignore[no-untyped-call]
                offer,
                request_max_window_bits=_WINDOW_BITS if offer.accept_max_window_bits else 0,
                window_bits=min(_WINDOW_BITS, offer.request_max_window_bits or _WINDOW_BITS),
                mem_level=_MEMORY_LEVEL,
            )
    return None
