"""A little traffic for whoever has none yet: short chats at moderate concurrency, so that there is something to see."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.errors import DomainError, PoolNotFound, Unavailable
from serving.contracts.ids import PoolName

logger = logging.getLogger(__name__)

SECONDS = 30.0
"""How long it is sent; what was asked by then is still answered."""

CONCURRENCY = 6
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 20.0
"""How long the last answers may take."""

_PAUSE_SECONDS = (0.05, 0.4)
_PAUSE_AFTER_REFUSAL_SECONDS = 1.0
_TEMPERATURE = 0.7
_PREFACE = (
    "You help the crew of a steam locomotive. They stand on the footplate, it is loud, and they have one hand free. "
    "Answer in short sentences, say what to do first, and name the gauge to watch. "
)
_CHATS = (
    ("Say hello to somebody who has just started you.", 24),
    ("Name three uses of a teapot.", 48),
    ("Why is the sky blue? Two sentences.", 64),
    ("Write a haiku about waiting in a queue.", 32),
    ("Count from one to twenty in words.", 80),
    (_PREFACE + "The steam pressure falls. What now?", 64),
    (_PREFACE + "The water gauge shows little. What now?", 64),
    (_PREFACE + "We go uphill and slow down. What now?", 96),
    ("Summarise in one sentence: " + "The engine takes in requests and forms a batch anew at every step. " * 12, 40),
)
"""Messages and how long their answers may be at most, in tokens. Some begin alike, as those of an application do."""


class Asker(Protocol):
    """Who asks a pool's model."""

    async def prompt(
        self,
        pool: str,
        text: str,
        *,
        max_tokens: int,
        temperature: float,
        request_id: str,
        arrived_at: float,
        cleanup: contextlib.AsyncExitStack,
    ) -> Any:
        """The answer, piece by piece; raises `DomainError`."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Playing:
    """Traffic that is sent: who began it, and for how much longer."""

    author: str
    seconds_left: float


class SampleTraffic:
    """Owns the traffic that this process sends, on its event loop. Of all processes together, one sends to a pool at a
    time: a key in Redis says so, whose life is the traffic's, and whose end ends it.

    `sleep` and `clock` (seconds, monotonic) are asyncio's and the system's unless said otherwise.
    """

    def __init__(
        self,
        redis: Redis,
        asker: Asker,
        *,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._redis = redis
        self._asker = asker
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._running: dict[PoolName, asyncio.Task[None]] = {}

    async def start(self, pool: PoolName, *, author: str) -> Playing | None:
        """Begin to send to the pool; where somebody does already, nothing is begun and that is given.

        Raises `Unavailable` while Redis is out of reach.
        """
        token = uuid.uuid4().hex
        mine = json.dumps({"token": token, "author": author})
        async with self._reachable():
            life_ms = int(self._seconds * 1000)
            if not await self._redis.set(keys.sample_traffic(pool), mine, nx=True, px=life_ms):
                if (playing := await self.state(pool)) is not None:
                    return playing
                # What was sent ended between the two questions.
                await self._redis.set(keys.sample_traffic(pool), mine, px=life_ms)
        task = asyncio.create_task(self._play(pool, token), name=f"sample traffic to {pool}")
        previous = self._running.pop(pool, None)
        self._running[pool] = task
        if previous is not None:  # it waits for its last answers
            await _end([previous])
        return None

    async def stop(self, pool: PoolName) -> bool:
        """End what is sent to the pool, whichever process sends it; whether there was anything.

        Raises `Unavailable` while Redis is out of reach.
        """
        async with self._reachable():
            return bool(await self._redis.delete(keys.sample_traffic(pool)))

    async def state(self, pool: PoolName) -> Playing | None:
        """What is sent to the pool now. Raises `Unavailable` while Redis is out of reach."""
        async with self._reachable():
            stored = cast("bytes | None", await self._redis.get(keys.sample_traffic(pool)))
            left_ms = int(await self._redis.pttl(keys.sample_traffic(pool)))
        if stored is None or left_ms <= 0:
            return None
        return Playing(str(json.loads(stored)["author"]), left_ms / 1000)

    async def close(self) -> None:
        """End what this process sends. Idempotent."""
        running, self._running = list(self._running.values()), {}
        await _end(running)

    async def _play(self, pool: PoolName, token: str) -> None:
        ends_at = self._clock() + self._seconds
        is_over = asyncio.Event()
        askers = [asyncio.create_task(self._ask_on(pool, is_over)) for _ in range(CONCURRENCY)]
        try:
            while self._clock() < ends_at and not all(asker.done() for asker in askers):
                await self._sleep(_LOOK_SECONDS)
                if self._clock() < ends_at and not await self._is_wanted(pool, token):
                    return
            is_over.set()
            await asyncio.wait(askers, timeout=_PATIENCE_SECONDS)
        finally:
            is_over.set()
            await _end(askers)

    async def _is_wanted(self, pool: PoolName, token: str) -> bool:
        try:
            stored = cast("bytes | None", await self._redis.get(keys.sample_traffic(pool)))
        except (RedisError, OSError):
            return True  # it ends by the clock
        return stored is not None and json.loads(stored)["token"] == token

    async def _ask_on(self, pool: PoolName, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            text, max_tokens = random.choice(_CHATS)
            pause = random.uniform(*_PAUSE_SECONDS)
            try:
                await self._ask(pool, text, max_tokens=max_tokens)
            except PoolNotFound:
                return
            except DomainError as error:
                logger.info("sample traffic to %s was refused: %s", pool, error.code)
                pause = _PAUSE_AFTER_REFUSAL_SECONDS
            await self._sleep(pause)

    async def _ask(self, pool: PoolName, text: str, *, max_tokens: int) -> None:
        async with contextlib.AsyncExitStack() as cleanup:
            answer = await self._asker.prompt(
                pool,
                text,
                max_tokens=max_tokens,
                temperature=_TEMPERATURE,
                request_id=f"req_{uuid.uuid4().hex}",
                arrived_at=self._clock(),
                cleanup=cleanup,
            )
            async for _ in answer:
                pass

    @contextlib.asynccontextmanager
    async def _reachable(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError):
            raise Unavailable("Redis cannot be reached") from None


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end; repeated, since a cancellation may be lost in Redis's client on Python
    3.11."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)
