"""A console page's way in, without a browser: sign in over HTTP, then talk over the websocket."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from tests.e2e.stack import Stack


class ConsoleSocket:
    """One websocket of a signed-in operator; acknowledges every frame, as a page does."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.frames: list[dict[str, Any]] = []

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a command and return its answer."""
        await self._socket.send_json(message)
        return await self.wait_for(lambda answer: answer.get("id") == message["id"])

    async def wait_for(self, condition: Callable[[dict[str, Any]], bool], *, seconds: float = 30) -> dict[str, Any]:
        """The next message that meets `condition`."""
        async with asyncio.timeout(seconds):
            while True:
                message: dict[str, Any] = await self._socket.receive_json()
                if message["type"] == "frame":
                    self.frames.append(message)
                    await self._socket.send_json({"type": "ack", "sequence": message["sequence"]})
                if condition(message):
                    return message

    async def wait_until_applied(self, version: int, *, num_engines: int) -> dict[str, Any]:
        """The first frame in which that many engines live and all of them run `version`."""
        return await self.wait_for(
            lambda m: m["type"] == "frame" and [e["tunables_version"] for e in m["engines"]] == [version] * num_engines
        )


@contextlib.asynccontextmanager
async def signed_in(stack: Stack, *, url: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that bears the first operator's session, at the stack's own web process or another one at `url`."""
    base = url or stack.url
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address without a name
    async with aiohttp.ClientSession(base, cookie_jar=jar, headers={"Origin": base}) as client:
        page = await (await client.get("/console/login/")).text()
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert token is not None
        form = {key: stack.first_run[key] for key in ("username", "password")} | {"csrfmiddlewaretoken": token[1]}
        answer = await client.post("/console/login/", data=form)
        assert (answer.status, answer.url.path) == (200, "/console/")
        yield client


@contextlib.asynccontextmanager
async def watching(client: aiohttp.ClientSession, pool: str = "default") -> AsyncIterator[ConsoleSocket]:
    """A socket that watches `pool`, past `hello` and `history`."""
    async with client.ws_connect(f"/console/live/{pool}") as socket:
        console = ConsoleSocket(socket)
        await socket.send_json({"type": "watch"})
        await console.wait_for(lambda message: message["type"] == "history")
        yield console
