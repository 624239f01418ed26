"""A server on loopback that answers as it is told, and a player that asks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from serving.lab.playing.player import Played, Player
from serving.lab.playing.target import Target
from serving.lab.recording import Recorder
from serving.lab.summaries import Outcome
from serving.lab.workloads.arrivals import Arrivals
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Workload

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
CLASS = RequestClass(name="a", prompt_tokens=Fixed(12), output_tokens=Fixed(4))


def workload(arrivals: Arrivals, *, count: int = 6, request_class: RequestClass = CLASS, **changes: Any) -> Workload:
    return Workload(name="w", arrivals=arrivals, classes=(request_class,), num_requests=count, **changes)


class Server:
    """Owns what it was asked, and how many at once; answers by `answer`."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.num_in_flight = self.most_in_flight = self.num_left = 0
        self.answer: Answer = stream
        self.busy, self.idle = asyncio.Event(), asyncio.Event()
        """Whether three were asked, and whether nobody is answered just now."""
        self.url = ""

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        self.num_in_flight += 1
        self.idle.clear()
        if len(self.bodies) == 3:
            self.busy.set()
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        try:
            return await self.answer(request, body)
        except (ConnectionResetError, asyncio.CancelledError):
            self.num_left += 1
            raise
        finally:
            self.num_in_flight -= 1
            if not self.num_in_flight:
                self.idle.set()


async def stream(
    request: web.Request, body: dict[str, Any], *, pause: float = 0.0, gap: float = 0.0
) -> web.StreamResponse:
    await asyncio.sleep(pause)
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
    if not body.get("stream"):
        return web.json_response({"choices": [{"text": "a" * body["max_tokens"]}], "usage": usage})
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(body["max_tokens"]):
        await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        await asyncio.sleep(gap)
    last = {"choices": [], "usage": usage, "timings": {"queue_ms": 30.0}}
    await response.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def in_pieces(request: web.Request, sizes: list[int], *, tells: str = "", gap: float = 0.0) -> web.StreamResponse:
    """A stream that holds so many tokens a piece, and tells of them by `usage`, by `token_ids`, or at its end alone."""
    response = web.StreamResponse()
    await response.prepare(request)
    for place, size in enumerate(sizes):
        event: dict[str, Any] = {"choices": [{"text": "a" * max(1, size)}]}
        if tells == "usage" or (tells == "with the last" and place == len(sizes) - 1):
            event["usage"] = {"prompt_tokens": 12, "completion_tokens": sum(sizes[: place + 1])}
        if tells == "token_ids":
            event["choices"][0]["token_ids"] = list(range(size))
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await asyncio.sleep(gap)
    usage = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": sum(sizes)}}
    await response.write(b"data: " + json.dumps(usage).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[Server]:
    """A server that runs."""
    server = Server()
    application = web.Application()
    application.router.add_post("/v1/completions", server.take)
    application.router.add_post("/v1/chat/completions", server.take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


async def play(server: Server, played: Workload, **target: Any) -> tuple[list[Outcome], Recorder, Played]:
    recorder = Recorder(played)
    player = Player(played, Target(**{"url": server.url, "model": "m", "key": "k", **target}), recorder=recorder)
    result = await player.play()
    return sorted(recorder.outcomes, key=lambda outcome: outcome.index), recorder, result
