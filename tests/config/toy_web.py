"""A web process with a toy application behind the real server: `toy_web.py FOLDER DRAIN_SECONDS`.

Writes its port to FOLDER/port and what happens to FOLDER/events. Paths: `/echo` answers with the size of the body,
`/stream` sends a line every 0.1 s until it is told to end, `/short` for 1.5 s, `/wait` answers nothing until the client
goes, `/status/N` answers with that status, `/fail` raises, `/fail-late` raises after its first piece, `/rss` tells the
process's memory, now and at most. Websockets: `toy_sockets.py`.
"""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from serving.config.http_bounds import HttpBounds
from serving.config.web_server import Lifecycle, WebServer, open_listener
from serving.config.websocket_bounds import WebSocketBounds
from tests.config.toy_sockets import ToySockets


class Toy:
    """Owns the toy's state, on the server's thread."""

    def __init__(self, folder: Path) -> None:
        self.events = folder / "events"
        self.draining = False
        self.ending = asyncio.Event()
        self.sockets = ToySockets(note=self.note, ending=self.ending)

    def note(self, event: str) -> None:
        with self.events.open("a") as file:
            file.write(f"{time.monotonic():.3f} {event}\n")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["root_path"]:
            self.note(f"root path: {scope['root_path']}")
        if scope["type"] == "websocket":
            await self.sockets(scope, receive, send)
            return
        if self.draining:
            await respond(send, 503, b"draining")
            return
        body = 0
        while True:
            message = await receive()
            body += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        if scope["path"].startswith("/status/"):
            await respond(send, int(scope["path"].removeprefix("/status/")), b"")
            return
        handler = getattr(self, scope["path"].strip("/").replace("-", "_"), self.echo)
        await handler(body, receive, send)

    async def echo(self, body: int, receive: Any, send: Any) -> None:
        await respond(send, 200, json.dumps({"bytes": body}).encode())

    async def rss(self, body: int, receive: Any, send: Any) -> None:
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        kilobytes = {words[0].rstrip(":"): int(words[1]) for words in lines if words[0] in ("VmRSS:", "VmHWM:")}
        await respond(send, 200, json.dumps(kilobytes).encode())

    async def stream(self, body: int, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(receive())
        while not gone.done() and not self.ending.is_set():
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            await asyncio.sleep(0.1)
        self.note("stream: client gone" if gone.done() else "stream: ended by the server")
        await send({"type": "http.response.body", "body": b"the end\n"})

    async def short(self, body: int, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(15):
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            await asyncio.sleep(0.1)
        await send({"type": "http.response.body", "body": b"whole\n"})

    async def wait(self, body: int, receive: Any, send: Any) -> None:
        self.note("wait: begun")
        message = await receive()
        self.note(f"wait: {message['type']}")

    async def fail(self, body: int, receive: Any, send: Any) -> None:
        raise RuntimeError("a secret of the application")

    async def fail_late(self, body: int, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
        raise RuntimeError("a secret of the application")

    def begin_drain(self) -> None:
        self.draining = True
        self.note("drain")

    async def end_requests(self) -> None:
        self.note("end requests")
        self.ending.set()

    async def close(self) -> None:
        self.note("close")


async def respond(send: Any, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-toy", b"yes")]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    folder, drain_seconds = Path(sys.argv[1]), float(sys.argv[2])
    toy = Toy(folder)
    listener = open_listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    lifecycle = Lifecycle(
        begin_drain=toy.begin_drain,
        end_requests=toy.end_requests,
        close=toy.close,
        drain_seconds=drain_seconds,
        note_refusal=lambda code: toy.note(f"refused: {code}"),
    )
    bounds = HttpBounds(max_body_bytes=2_097_152, read_seconds=2.0, idle_seconds=3.0, linger_seconds=3.0)
    websocket_bounds = WebSocketBounds(
        max_unsent_bytes=1_048_576, accept_seconds=2.0, close_seconds=1.0, ping_seconds=1.0, pong_seconds=1.0
    )
    server = WebServer(toy, listener=listener, bounds=bounds, websocket_bounds=websocket_bounds, lifecycle=lifecycle)
    (folder / "port.new").write_text(str(port))
    (folder / "port.new").rename(folder / "port")
    server.run()
    toy.note("exit")


if __name__ == "__main__":
    main()
