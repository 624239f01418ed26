"""The outermost ASGI layer: gives each request its identity, its services and its end."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from serving.api.context import ApiServices, RequestScope
from serving.api.rate_limits import KnownLimits
from serving.contracts.ids import RequestId

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

_LONGEST_CLIENT_ID = 128


class Entrance:
    """Owns nothing: wraps an ASGI application on whatever event loop calls it.

    Puts the services into `scope["footplate"]` and, for HTTP, a `RequestScope` into `scope["footplate.request"]`. Every
    response bears `x-request-id`, and under `/v1` what is left of a minute's quotas. That id is made here: a client's
    own `X-Request-Id` is never an identity, since two clients may choose the same one; a short printable one is given
    back as `x-client-request-id`.
    """

    def __init__(self, application: Application, services: ApiServices) -> None:
        self._application = application
        self._services = services

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        inner_scope = {**scope, "footplate": self._services}
        if scope["type"] != "http":
            await self._application(inner_scope, receive, send)
            return
        request_id = RequestId(f"req_{uuid.uuid4().hex}")
        rate_limits = KnownLimits()
        extra_headers = [(b"x-request-id", request_id.encode()), *_echo_client_id(scope["headers"])]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                limits = await rate_limits.headers(self._services.door) if scope["path"].startswith("/v1/") else []
                message = {**message, "headers": _with(list(message.get("headers", ())), [*extra_headers, *limits])}
            await send(message)

        # Whoever is cancelled, and wherever, what a request holds is given up when this block is left.
        async with contextlib.AsyncExitStack() as cleanup:
            inner_scope["footplate.request"] = RequestScope(
                request_id=request_id, arrived_at=time.monotonic(), cleanup=cleanup, rate_limits=rate_limits
            )
            await self._application(inner_scope, receive, send_with_headers)


def _echo_client_id(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = [value for name, value in headers if name == b"x-request-id"]
    if len(given) != 1 or not 0 < len(given[0]) <= _LONGEST_CLIENT_ID:
        return []
    printable = all(0x20 < byte < 0x7F for byte in given[0])
    return [(b"x-client-request-id", given[0])] if printable else []


def _with(headers: list[tuple[bytes, bytes]], extra: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    present = {name.lower() for name, _ in headers}
    nosniff = [] if b"x-content-type-options" in present else [(b"x-content-type-options", b"nosniff")]
    return [*headers, *extra, *nosniff]
