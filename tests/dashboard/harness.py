"""Pages without a browser: one end of an ASGI websocket, frames to send them, and who is signed in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.admission.authenticator import Authenticator
from serving.contracts.ids import PoolName
from serving.telemetry.feed import LiveFeed, broadcast
from serving.telemetry.frames import LiveFrame, Point, encode_live
from serving.telemetry.steps import StepsFeed

POOL = PoolName("default")
PASSWORD = "a long enough password"
HOST = "localhost"
CLIENT = "203.0.113.7"
ORIGIN = f"http://{HOST}"
PATIENCE_SECONDS = 20.0


def make_layer(url: str) -> Any:
    """A channel layer as production's."""
    return RedisPubSubChannelLayer(hosts=[url], prefix="tests:channels:")


@dataclasses.dataclass
class Services:
    """What the console needs of a web process; `prompter` is the test's to set."""

    redis: Redis
    blocking_redis: BlockingRedis
    feed: LiveFeed
    steps: StepsFeed
    publishing_layer: Any
    authenticator: Authenticator
    prompter: Any = None
    sample_traffic: Any = None
    gateway: Any = dataclasses.field(default_factory=lambda: SimpleNamespace(refresh_pools=_do_nothing, pools=list))
    observer: Any = dataclasses.field(default_factory=lambda: SimpleNamespace(rejected=lambda _code: None))

    async def publish(self, *sequences: int, pool: PoolName = POOL) -> None:
        """Broadcast frames of these numbers, as the monitor does."""
        for sequence in sequences:
            await broadcast(self.publishing_layer, pool, sequence=sequence, frame=frame_of(sequence, pool=pool))

    async def num_subscribers(self, pool: PoolName = POOL) -> int:
        """Processes that are subscribed to the pool's frames."""
        channels = await self.redis.pubsub_channels(f"*live.{pool}")
        counts = await self.redis.pubsub_numsub(*channels) if channels else []
        return sum(count for _, count in counts)

    async def until_subscribed(self, count: int = 1, *, pool: PoolName = POOL) -> None:
        """Wait until so many processes receive the pool's frames."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.num_subscribers(pool) != count:  # noqa: ASYNC110 (Redis tells nobody)
                await asyncio.sleep(0.02)


async def _do_nothing() -> None: ...


@contextlib.asynccontextmanager
async def console_services(url: str) -> AsyncIterator[Services]:
    """The parts of a web process over the Redis at `url`, its feed running."""
    redis, blocking_redis = Redis.from_url(url), BlockingRedis.from_url(url)
    feed, layer, authenticator = LiveFeed(make_layer(url)), make_layer(url), Authenticator(redis)
    steps = StepsFeed(redis, read_seconds=0.01)
    await feed.start()
    try:
        yield Services(redis, blocking_redis, feed, steps, layer, authenticator)
    finally:
        await authenticator.close()
        await feed.close()
        await steps.close()
        await layer.flush()
        await redis.aclose()
        blocking_redis.close()


def point_of(unix_seconds: float) -> Point:
    """A point of an idle pool."""
    nothing = [[[None] * 4] * 4] * 4
    return Point(unix_seconds, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 1, nothing)


def frame_of(sequence: int, *, pool: PoolName = POOL) -> bytes:
    """The JSON of an idle pool's frame."""
    frame = LiveFrame(
        sequence=sequence, pool=pool, point=point_of(1e9 + sequence), announced_version=1, outcomes={}, engines=[]
    )
    return encode_live(frame)


def make_user(name: str, *, is_staff: bool = True, may_steer: bool = True, may_prompt: bool = True) -> User:
    """A user with just these rights. Blocking."""
    user = User.objects.create_user(name, password=PASSWORD, is_staff=is_staff)
    wanted = {"add_tunablesversion": may_steer, "add_usage": may_prompt}
    user.user_permissions.set(Permission.objects.filter(codename__in=[code for code, has in wanted.items() if has]))
    return user


async def sign_in(user: User) -> str:
    """A session of the user's; gives its cookie."""
    client = AsyncClient()
    await client.aforce_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


async def new_session(name: str, **rights: bool) -> str:
    """The cookie of a new user who has just signed in."""
    return await sign_in(await database_sync_to_async(make_user)(name, **rights))


class Closed(Exception):
    """The other end closed the socket."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code


class Socket(WebsocketCommunicator):
    """Channels' communicator, for several sockets at once.

    While it waits, the original replaces for the whole process the function that gives database connections back; with
    two of them waiting, it is never put in place again. The plain ASGI communicator below it does not.
    """

    send_input = ApplicationCommunicator.send_input
    receive_output = ApplicationCommunicator.receive_output


class Page:
    """Owns one end of a websocket into an ASGI application, and the task that serves the other end."""

    def __init__(self, application: Any, cookie: str | None = None, *, path: str = f"/console/live/{POOL}") -> None:
        self._application = application
        self._cookie = cookie
        self._path = path
        self._socket: Any = None
        self.texts: list[str] = []
        """All that the server ever sent."""

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What serves the other end; None before `connect`."""
        return None if self._socket is None else self._socket.future

    async def connect(self, *, headers: Iterable[tuple[bytes, bytes]] = ((b"origin", ORIGIN.encode()),)) -> bool:
        """Shake hands; whether the server accepted."""
        sent = [(b"host", HOST.encode()), *headers]
        if self._cookie is not None:
            sent.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={self._cookie}".encode()))
        self._socket = Socket(self._serve, self._path, headers=sent)
        accepted, _ = await self._socket.connect(timeout=PATIENCE_SECONDS)
        return bool(accepted)

    async def _serve(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        async def send_noted(event: dict[str, Any]) -> None:
            if "text" in event:
                self.texts.append(event["text"])
            await send(event)

        await self._application({**scope, "client": (CLIENT, 50_000)}, receive, send_noted)

    async def open(self, **watch: Any) -> dict[str, Any]:
        """Connect and begin to watch; gives the server's `hello`. Its `history` is the next message."""
        assert await self.connect()
        self.send(type="watch", **watch)
        return await self.receive("hello")

    def send(self, **message: Any) -> None:
        """Say something to the server."""
        self.send_text(json.dumps(message))

    def send_text(self, text: str) -> None:
        """Send a frame of text, whatever it says."""
        self._socket.input_queue.put_nowait({"type": "websocket.receive", "text": text})

    def send_bytes(self, data: bytes) -> None:
        """Send a binary frame."""
        self._socket.input_queue.put_nowait({"type": "websocket.receive", "bytes": data})

    async def receive(self, kind: str) -> Any:
        """The next message of that type; those of others before it are dropped. Raises `Closed`."""
        while True:
            message = await self.receive_any()
            if message["type"] == kind:
                return message

    async def receive_any(self) -> Any:
        """The next message. Raises `Closed`."""
        event = await self._socket.receive_output(timeout=PATIENCE_SECONDS)
        if event["type"] == "websocket.close":
            raise Closed(event["code"], event.get("reason", ""))
        return json.loads(event["text"])

    async def ask(self, **command: Any) -> Any:
        """Send a command; gives its answer."""
        self.send(**command)
        while True:
            message = await self.receive_any()
            if message.get("id") == command["id"]:
                return message

    async def until_closed(self) -> int:
        """Wait until the server closes the socket and has forgotten it; gives the code."""
        try:
            while True:
                await self.receive_any()
        except Closed as closed:
            await self.ended()
            return closed.code

    async def ended(self) -> None:
        """Wait until nothing serves this page any more. Raises what its application raised."""
        assert self.task is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.task

    async def leave(self, code: int = 1000) -> None:
        """Go away, with 1006 as a browser that dies does, and wait until the server knows."""
        self._socket.input_queue.put_nowait({"type": "websocket.disconnect", "code": code})
        await self.ended()
