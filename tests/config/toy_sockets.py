"""The toy web process's websockets: each path is an application that does one thing."""

import asyncio
from collections.abc import Callable
from typing import Any


class ToySockets:
    """Owns nothing; notes what the server tells of its connections.

    `/echo` sends back what it receives; `/hold` only receives; `/deaf` accepts and never receives; `/flood` sends
    without end; `/large` answers each message with 300 KB; `/rude` closes with 4408 at the first; `/leave` closes
    when the server ends its requests; `/stubborn` ends by cancellation alone; `/refuse`, `/undecided`, `/fail-early`
    and `/vanish-early` never accept, `/babel` with a subprotocol that nobody asked for; `/fail` and `/vanish` accept
    and end.
    """

    def __init__(self, *, note: Callable[[str], None], ending: asyncio.Event) -> None:
        self.note = note
        self.ending = ending

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        name = scope["path"].strip("/").replace("-", "_")
        assert (await receive())["type"] == "websocket.connect"
        if name == "babel":
            await send({"type": "websocket.accept", "subprotocol": "nobody asked for this"})
        elif name not in ("refuse", "undecided", "fail_early", "vanish_early"):
            await send({"type": "websocket.accept"})
        await getattr(self, name)(receive, send)

    async def echo(self, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            await send({**message, "type": "websocket.send"})
        self.note(f"echo: {message['type']} {message['code']}")

    async def hold(self, receive: Any, send: Any) -> None:
        self.note("hold: accepted")
        while (message := await receive())["type"] == "websocket.receive":
            pass
        self.note(f"hold: {message['type']} {message['code']}")

    async def deaf(self, receive: Any, send: Any) -> None:
        await asyncio.sleep(2)
        num_unread = 0
        while (message := await receive())["type"] == "websocket.receive":
            num_unread += 1
        self.note(f"deaf: {num_unread} {message['type']}")

    async def flood(self, receive: Any, send: Any) -> None:
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "websocket.send", "text": "x" * 60_000})
            await asyncio.sleep(0.001)
        self.note(f"flood: {gone.result()['type']} {gone.result()['code']}")

    async def large(self, receive: Any, send: Any) -> None:
        while (await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": "x" * 300_000})

    async def rude(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.send", "text": "y" * 2_000_000})
        await send({"type": "websocket.close", "code": 4408, "reason": "too slow"})
        await send({"type": "websocket.send", "text": "nobody hears this"})
        message = await receive()
        self.note(f"rude: {message['type']} {message['code']}")

    async def leave(self, receive: Any, send: Any) -> None:
        self.note("leave: accepted")
        await self.ending.wait()
        await send({"type": "websocket.close", "code": 1012, "reason": "by the application"})
        message = await receive()
        self.note(f"leave: {message['type']} {message['code']}")

    async def stubborn(self, receive: Any, send: Any) -> None:
        self.note("stubborn: accepted")
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.1)
            self.note("stubborn: cleaned up")

    async def babel(self, receive: Any, send: Any) -> None:
        self.note(f"babel: {(await receive())['type']}")

    async def refuse(self, receive: Any, send: Any) -> None:
        await send({"type": "websocket.close"})

    async def undecided(self, receive: Any, send: Any) -> None:
        message = await receive()
        self.note(f"undecided: {message['type']}")

    async def fail_early(self, receive: Any, send: Any) -> None:
        raise RuntimeError("a secret of the application")

    async def fail(self, receive: Any, send: Any) -> None:
        raise RuntimeError("a secret of the application")

    async def vanish_early(self, receive: Any, send: Any) -> None:
        return

    async def vanish(self, receive: Any, send: Any) -> None:
        return
