"""What one process has in flight, told to Redis; and what consoles order it to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import OwnerId, RequestId
from serving.gateway.requests import InFlight
from serving.telemetry.running import (
    MAX_REQUESTS,
    ORDER_LIFE_MS,
    AbortOrder,
    RunningList,
    RunningRequest,
    decode_abort_order,
)

logger = logging.getLogger(__name__)

_TELL_SECONDS = 0.5
_LIFE_MS = 3_000
_ORDERS_AT_ONCE = 100


class Owner(Protocol):
    """Who has requests in flight."""

    @property
    def num_in_flight(self) -> int: ...

    def in_flight(self, *, limit: int) -> Sequence[InFlight]:
        """The oldest of them."""
        ...

    def abort(self, request_id: RequestId) -> bool:
        """End one; False where it is not in flight here."""
        ...


class RunningBoard:
    """Owns the task that tells Redis twice a second what its process has in flight, and takes orders to end a request;
    on the gateway's event loop.

    What it tells lives for three seconds: a process that dies is soon forgotten. While Redis is away nothing is told
    and no order comes.
    """

    def __init__(
        self, redis: Redis, *, owner_id: OwnerId, owner: Owner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._owner_id = owner_id
        self._owner = owner
        self._clock = clock
        self._telling: asyncio.Task[None] | None = None
        self._is_heard = True
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to tell."""
        self._telling = asyncio.create_task(self._tell_until_stopped())

    async def stop(self) -> None:
        """Take back what was told, and tell no more. Idempotent."""
        self._stopping.set()
        if self._telling is None:
            return
        await self._telling
        self._telling = None
        with contextlib.suppress(RedisError, OSError):
            await self._redis.delete(keys.running(self._owner_id), keys.abort_orders(self._owner_id))
            await self._redis.srem(keys.running_owners(), self._owner_id)

    async def tell(self) -> None:
        """Tell once, and carry out what was ordered meanwhile. Errors of Redis pass through."""
        orders = await self._publish()
        if orders:
            await self._answer({order: self._owner.abort(order.request_id) for order in orders})
            await self._publish()

    async def _tell_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.tell()
                self._is_heard = True
            except (RedisError, OSError):
                if self._is_heard:  # said once: lines of an outage would push all others out of the log's last ones
                    logger.warning("what runs cannot be told: Redis is out of reach")
                self._is_heard = False
            except Exception:
                logger.exception("cannot tell what runs")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TELL_SECONDS)

    async def _publish(self) -> list[AbortOrder]:
        told = RunningList(
            owner_id=self._owner_id,
            num_in_flight=self._owner.num_in_flight,
            requests=tuple(self._describe(request) for request in self._owner.in_flight(limit=MAX_REQUESTS)),
        )
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(keys.running(self._owner_id), msgspec.msgpack.encode(told), px=_LIFE_MS)
        pipe.sadd(keys.running_owners(), self._owner_id)
        pipe.lpop(keys.abort_orders(self._owner_id), _ORDERS_AT_ONCE)
        *_, taken = await pipe.execute()
        orders = [decode_or_none(decode_abort_order, raw) for raw in taken or ()]
        return [order for order in orders if order is not None]

    async def _answer(self, answers: dict[AbortOrder, bool]) -> None:
        pipe = self._redis.pipeline(transaction=True)
        for order, is_aborted in answers.items():
            pipe.rpush(keys.abort_answers(order.order_id), b"aborted" if is_aborted else b"gone")
            pipe.pexpire(keys.abort_answers(order.order_id), ORDER_LIFE_MS)
        await pipe.execute()

    def _describe(self, request: InFlight) -> RunningRequest:
        generation, origin = request.generation, request.generation.origin
        return RunningRequest(
            request_id=generation.request_id,
            pool=generation.pool,
            tenant=origin.tenant_name,
            key_prefix=origin.key_prefix,
            endpoint=origin.endpoint,
            is_running=request.started,
            age_seconds=max(0.0, self._clock() - generation.arrived_at),
            num_choices=len(request.choices),
            prompt_tokens=len(generation.prompt_ids),
            completion_tokens=request.stream.num_completion_tokens,
            num_ahead=request.num_ahead,
        )
