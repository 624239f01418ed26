"""The collected static files over ASGI."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

from whitenoise.middleware import WhiteNoiseMiddleware

from serving.api.entrance import Receive, Send

_FILE_HEADERS = {b"accept-encoding", b"if-modified-since", b"if-none-match", b"range"}
"""Those that decide what is sent of a file."""


class StaticFiles:
    """Owns the list of files under STATIC_ROOT, as they were when it was made; answers on the server's event loop.

    An application of its own and no middleware: WhiteNoise's is synchronous, and would hold a thread for each page of
    the console, and each streamed answer, from its beginning to its end. Files are read on threads.
    """

    def __init__(self) -> None:
        self._files = WhiteNoiseMiddleware(lambda _: None)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        status, headers, body = await asyncio.to_thread(self._answer, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, scope: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        path = scope["path"]
        file = self._files.find_file(path) if self._files.autorefresh else self._files.files.get(path)
        if file is None:
            return HTTPStatus.NOT_FOUND, [(b"content-type", b"text/plain")], b"There is no such file.\n"
        found = file.get_response(scope["method"], _meta(scope["headers"]))
        headers = [(name.lower().encode(), value.encode()) for name, value in found.headers]
        if found.file is None:
            return int(found.status), headers, b""
        with found.file:
            return int(found.status), headers, cast(bytes, found.file.read())


def _meta(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Request headers by the names that WhiteNoise, which thinks in CGI's, looks for."""
    return {
        "HTTP_" + name.decode().upper().replace("-", "_"): value.decode("latin1")
        for name, value in headers
        if name in _FILE_HEADERS
    }
