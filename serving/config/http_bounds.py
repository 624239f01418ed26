"""What one HTTP connection may cost before any application sees it: bounds on head, body and time.

Daphne reads a whole body before it calls the application, so a bound that the application keeps is kept too late.
Here a request that exceeds one is answered at once, in the API's error shape, and its connection is closed.
"""

from __future__ import annotations

import dataclasses
import json
from http import HTTPStatus
from typing import Any

from daphne.http_protocol import WebRequest
from daphne.server import reactor  # never twisted's own: importing daphne's server is what installs the right one
from twisted.web import http

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
"""Twisted's own table lacks the younger ones, 429 and 431 among them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    """Sizes in bytes, times in seconds. `read_seconds` is from a request's first byte to its last; `idle_seconds` is
    how long a connection may be silent; `linger_seconds` how long a refused client may go on sending unread, so that
    it reads the answer and not a reset connection."""

    max_body_bytes: int
    max_head_bytes: int = 16_384
    max_headers: int = 100
    read_seconds: float = 30.0
    idle_seconds: float = 75.0
    linger_seconds: float = 10.0


class BoundedRequest(WebRequest):
    """One request of a `BoundedChannel`: counts its body, and gives daphne's own errors in the API's shape."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        # Twisted would parse forms for itself, for nobody to read.
        super().__init__(*arguments, parsePOSTFormSubmission=False, **keywords)
        self._num_body_bytes = 0

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a piece of the body, unless it is one too many."""
        self._num_body_bytes += len(data)
        if self._num_body_bytes > self.channel.bounds.max_body_bytes:
            self.channel.refuse_body()
        if not self.channel.refused:
            super().handleContentChunk(data)

    def setResponseCode(self, code: int, message: bytes | None = None) -> None:
        """Answer with that status, under its standard phrase where no other is given."""
        super().setResponseCode(code, message or _PHRASES.get(code))

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """Answer with an error of the server's own."""
        headers = [(b"Content-Type", b"application/json"), (b"Connection", b"close")]
        self.channel.persistent = 0
        self.handle_reply({"type": "http.response.start", "status": status, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": error_body(status, body)})

    def handle_exception(self, exception: BaseException) -> None:
        """The application failed: answer 500, or cut the connection where an answer has begun."""
        if self.finished or self.channel is None:
            return
        if self._response_started:
            self.channel.transport.abortConnection()
        else:
            self.basic_error(500, b"Internal Server Error", "The server failed to answer this request")


class BoundedChannel(http.HTTPChannel):
    """One connection, on the reactor's thread: refuses a request as soon as it exceeds a bound of its factory's."""

    requestFactory = BoundedRequest

    def __init__(self) -> None:
        super().__init__()
        self.refused = False
        """Whether a request was refused: nothing that still arrives is read."""
        self._read_deadline: Any = None

    @property
    def bounds(self) -> HttpBounds:
        """The bounds in force."""
        bounds: HttpBounds = self.factory.bounds
        return bounds

    def connectionMade(self) -> None:
        """Take over the factory's bounds on the head."""
        self.maxHeaders = self.bounds.max_headers
        self.totalHeadersSize = self.MAX_LENGTH = self.bounds.max_head_bytes
        super().connectionMade()

    def connectionLost(self, reason: Any) -> None:
        """Forget the deadline; the requests hear of it through the superclass."""
        self._end_reading()
        super().connectionLost(reason)

    def dataReceived(self, data: bytes) -> None:
        """Parse what arrived, within the time that reading a request may take."""
        if self.refused:
            return
        if not self._handlingRequest and self._read_deadline is None:
            self._read_deadline = reactor.callLater(self.bounds.read_seconds, self._refuse_slow)
        super().dataReceived(data)

    def lineReceived(self, line: bytes) -> None:
        """A line of the head."""
        if not self.refused:
            super().lineReceived(line)

    def rawDataReceived(self, data: bytes) -> None:
        """A piece of a body, or of what follows the request being answered."""
        if not self.refused:
            super().rawDataReceived(data)

    def lineLengthExceeded(self, line: bytes) -> None:
        """A line is longer than a whole head may be."""
        self._refuse_head()

    def allHeadersReceived(self) -> None:
        """The head is complete: refuse a body that announces itself as too large before the client sends it."""
        if self.length is not None and self.length > self.bounds.max_body_bytes:
            self.refuse_body()
            return
        super().allHeadersReceived()

    def allContentReceived(self) -> None:
        """The request is complete: the time it takes to be answered is its own affair."""
        if self.refused:
            return
        self._end_reading()
        super().allContentReceived()

    def refuse_body(self) -> None:
        """Answer 413 and stop reading."""
        self._refuse(413, f"The request's body is larger than {self.bounds.max_body_bytes} bytes", "request_too_large")

    def _respondToBadRequestAndDisconnect(self) -> None:
        if self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders:
            self._refuse_head()
        else:
            self._refuse(400, "The request is not well-formed HTTP", "bad_request")

    def _refuse_head(self) -> None:
        message = f"The request's head exceeds {self.bounds.max_headers} headers or {self.bounds.max_head_bytes} bytes"
        self._refuse(431, message, "request_header_too_large")

    def _refuse_slow(self) -> None:
        self._read_deadline = None
        self._refuse(408, f"The request took longer than {self.bounds.read_seconds:g} s to arrive", "request_timeout")

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self.refused:
            return
        self.refused = True
        self.factory.note_refusal(code)
        self._end_reading()
        self.setTimeout(None)
        self.clearLineBuffer()
        body = error_body(status, message, code=code)
        head = (
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (status, _PHRASES[status], len(body))
        )
        self.transport.writeSequence([head, body])
        # A socket closed over unread data is reset, and the reset overtakes the answer: close only our half, and
        # throw away what the client still sends.
        self.transport.loseWriteConnection()
        self._abortingCall = self.callLater(self.bounds.linger_seconds, self.forceAbortClient)

    def _end_reading(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None


def error_body(status: int, message: str, *, code: str | None = None) -> bytes:
    """An error in the API's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
