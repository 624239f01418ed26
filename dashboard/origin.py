"""Websockets from our own pages alone: a browser sends an operator's cookie along with any page's handshake."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.utils.http import is_same_domain

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


class OwnOriginOnly:
    """Owns nothing: an ASGI layer that refuses a websocket's handshake (HTTP 403) unless its `Origin` is ours."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Pass one connection on, or refuse it."""
        if is_own_origin(scope):
            await self._application(scope, receive, send)
        else:
            await refuse(scope, receive, send)


async def refuse(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """The ASGI application that accepts no websocket: HTTP 403."""
    await send({"type": "websocket.close"})


def is_own_origin(scope: Mapping[str, Any]) -> bool:
    """Whether the one `Origin` of a handshake is exactly scheme and host of this very request, as Django sees both, or
    one that `CSRF_TRUSTED_ORIGINS` names (with its wildcards)."""
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    if len(origins) != 1:
        return False
    origin = origins[0].decode("latin-1")
    return origin == _origin_of_request(scope) or _is_trusted(origin)


def _origin_of_request(scope: Mapping[str, Any]) -> str | None:
    scheme = "https" if scope.get("scheme") in {"https", "wss"} else "http"
    request = ASGIRequest({**scope, "method": "GET", "scheme": scheme, "query_string": b""}, io.BytesIO())
    try:
        return f"{request.scheme}://{request.get_host()}"
    except DisallowedHost:
        return None


def _is_trusted(origin: str) -> bool:
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    try:
        given = urlsplit(origin)
    except ValueError:
        return False
    wildcards = [urlsplit(trusted) for trusted in settings.CSRF_TRUSTED_ORIGINS if "*" in trusted]
    return any(
        given.scheme == wildcard.scheme and is_same_domain(given.netloc, wildcard.netloc.lstrip("*"))
        for wildcard in wildcards
    )
