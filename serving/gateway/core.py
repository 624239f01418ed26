"""The gateway: owns every request of this process until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts.errors import AbortedByOperator, DomainError, EngineFailure, NoEngine, QueueTimeout, Unavailable
from serving.contracts.ids import OwnerId, PoolName, RequestId
from serving.contracts.messages import SequenceKey, Submit
from serving.gateway.calloffs import CallOffs
from serving.gateway.caretaker import Caretaker
from serving.gateway.delivery import Delivery, Verdict
from serving.gateway.endings import account_of
from serving.gateway.failover import Failover
from serving.gateway.generation import Generation
from serving.gateway.link import EngineLink
from serving.gateway.logprobs import EntryLine
from serving.gateway.observer import RequestObserver
from serving.gateway.pools import PoolLoads, PoolView, PoolWatcher
from serving.gateway.requests import Choice, InFlight, KeptText, Permit, WaitingRoom
from serving.gateway.stream import GenerationStream
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.stop_strings import StopStrings
from serving.gateway.text.tokenizer import TextModel
from serving.outages import Outage

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
_RENEW_EVERY_TICKS = 12
_LONGEST_BACKOFF_SECONDS = 2.0


class Gateway:
    """Owns this process's requests in flight; everything happens on the event loop that called `start`.

    Submits them to engines, turns their tokens into text, gives up what callers abandon, and submits the rest of a
    request again when its engine dies. Each request ends exactly once: finished, aborted, refused or failed.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        reading_redis: Redis,
        owner_id: OwnerId,
        text_models: Mapping[PoolName, TextModel],
        waiting_room: WaitingRoom,
        observer: RequestObserver,
        loads: PoolLoads,
        failover_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = EngineLink(redis, reading_redis=reading_redis, owner_id=owner_id)
        self._owner_id = owner_id
        self._watcher = PoolWatcher(reading_redis, text_models, loads=loads)
        self._call_offs = CallOffs(self._link, self._watcher)
        self._waiting_room = waiting_room
        self._observer = observer
        self._loads = loads
        self._clock = clock
        self._requests: dict[RequestId, InFlight] = {}
        self._delivery = Delivery(observer=observer, clock=clock)
        self._outage = Outage(usual_seconds=_LONGEST_BACKOFF_SECONDS, monotonic=clock)
        self._caretaker = Caretaker(
            link=self._link,
            watcher=self._watcher,
            call_offs=self._call_offs,
            failover=Failover(failover_seconds=failover_seconds),
            requests=self._requests,
            fail=self._fail,
            resubmit=lambda request, choice: self._submit(request, [choice]),
            outage=self._outage,
            clock=clock,
        )
        self._loops: list[asyncio.Task[None]] = []
        self._errands: set[asyncio.Task[None]] = set()
        self._stopping = False

    # --- life ---

    async def start(self) -> None:
        """Begin to beat, to watch engines and to read replies. Raises Redis's errors where it cannot be reached."""
        await self._link.beat()
        await self._watcher.refresh()
        self._loops = [asyncio.create_task(self._read_loop()), asyncio.create_task(self._tick_loop())]

    async def stop(self) -> None:
        """End what still runs with an error to its caller, tell the engines, and leave. Idempotent."""
        for request in list(self._requests.values()):
            self._fail(request, Unavailable("the server is shutting down"))
        self._stopping = True
        for task in self._loops:
            await end_task(task)
        self._loops = []
        await asyncio.gather(*self._errands, return_exceptions=True)
        await self._tell_call_offs()
        with contextlib.suppress(RedisError):
            await self._link.leave()

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def in_flight(self, *, limit: int) -> list[InFlight]:
        """The requests that have not ended, the oldest first, at most `limit`: to be looked at, and not changed."""
        return list(itertools.islice(self._requests.values(), limit))

    # --- pools ---

    def pools(self) -> list[PoolView]:
        """All pools as last seen."""
        return self._watcher.views()

    async def refresh_pools(self) -> None:
        """Look at the pools now, so that this process goes by a change at once; the others follow within a tick."""
        with contextlib.suppress(RedisError):
            await self._watcher.refresh()

    def keeps_waiting(self, pool: PoolName, tenant: str) -> bool:
        """Whether any of the tenant's requests of this process waits in the pool. Looks at all that are in flight."""
        return any(
            request.generation.tenant == tenant and request.generation.pool == pool and not request.started
            for request in self._requests.values()
        )

    # --- requests ---

    def generate(self, generation: Generation, *, permit: Permit | None = None) -> GenerationStream:
        """Start a request now. Failures come through the stream; closing the stream aborts what still runs."""
        text_model = self._watcher.view(generation.pool).text_model
        stream = GenerationStream(
            num_prompt_tokens=len(generation.prompt_ids),
            num_choices=len(generation.params),
            on_close=lambda: self._abandon(generation.request_id),
        )
        choices = [
            Choice(
                key=SequenceKey(generation.request_id, index),
                params=params,
                detokenizer=Detokenizer(text_model),
                stop_strings=StopStrings(generation.stop),
                entries=None if params.num_logprobs is None else EntryLine(text_model.speller),
                submitted_at=generation.arrived_at,
                last_heard_at=generation.arrived_at,
                kept_text=KeptText() if generation.origin.keeps_text else None,
            )
            for index, params in enumerate(generation.params)
        ]
        request = InFlight(generation=generation, text_model=text_model, choices=choices, stream=stream, permit=permit)
        self._requests[generation.request_id] = request
        self._observer.submitted(generation.pool)
        if self._stopping:
            self._fail(request, Unavailable("the server is shutting down"))
        else:
            self._submit(request, choices)
        return stream

    def _submit(self, request: InFlight, choices: Iterable[Choice]) -> None:
        """Begin an attempt at each choice now, and send it as soon as may be; the attempt before is called off."""
        begun = []
        for choice in choices:
            if choice.attempt > 0:
                self._call_offs.add(request.generation.pool, choice)
            begun.append((choice, request.next_submit(choice, owner_id=self._owner_id, now=self._clock())))
        self._run_errand(self._send(request, begun))

    async def _send(self, request: InFlight, begun: list[tuple[Choice, Submit]]) -> None:
        pool = request.generation.pool
        for choice, submit in begun:
            if choice.finished or choice.attempt != submit.attempt:
                continue
            try:
                entry_id = await self._link.submit(pool, submit)
            except RedisError as error:
                logger.warning("cannot submit %s: %s", request.generation.request_id, error)
                if not request.started:
                    seconds = self._outage.retry_after_seconds
                    self._fail(request, Unavailable("the queue cannot be reached", retry_after_seconds=seconds))
                return  # a stream that runs is submitted again once its acceptance is overdue
            if choice.finished or choice.attempt != submit.attempt:
                self._call_offs.add_entry(pool, submit.key, attempt=submit.attempt, entry_id=entry_id)
            elif choice.engine_id is None:
                choice.entry_id = entry_id
        await self._tell_call_offs()

    async def _tell_call_offs(self) -> None:
        with contextlib.suppress(RedisError):  # what stays is told at the next tick
            await self._call_offs.flush()

    # --- ends ---

    def abort(self, request_id: RequestId) -> bool:
        """End a request as if its client had left, and tell the client `aborted_by_operator`; False where none of this
        id is in flight here."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        request.stream.fail(AbortedByOperator("an operator ended this request from the console"))
        self._end(request, outcome="aborted")
        return True

    def _abandon(self, request_id: RequestId) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, outcome="aborted")

    def _fail(self, request: InFlight, error: DomainError) -> None:
        kind = "failed" if request.started else "refused"
        if isinstance(error, QueueTimeout | NoEngine):
            retry_after_seconds = self._loads.retry_after_seconds(request.generation.pool)
            error = type(error)(error.message, retry_after_seconds=retry_after_seconds)
        request.stream.fail(error)
        self._end(request, outcome=f"{kind}:{error.code}")

    def _end(self, request: InFlight, *, outcome: str) -> None:
        generation = request.generation
        if self._requests.pop(generation.request_id, None) is None:
            return
        still_running = request.unfinished()
        for choice in still_running:
            choice.finished = True
            self._call_offs.add(generation.pool, choice)
        if still_running:
            self._run_errand(self._tell_call_offs())
        self._close(request)
        self._observer.ended(account_of(request, outcome=outcome, now=self._clock(), watcher=self._watcher))

    def _release(self, request: InFlight) -> None:
        if request.permit is not None and not request.released:
            request.released = True
            self._run_errand(self._tell_room(self._waiting_room.release(request.permit)))

    def _close(self, request: InFlight) -> None:
        permit, request.permit = request.permit, None
        if permit is not None:
            closing = self._waiting_room.close(permit, request.spent, still_waits=not request.released)
            self._run_errand(self._tell_room(closing))

    async def _tell_room(self, telling: Coroutine[Any, Any, None]) -> None:
        # A permit that cannot be given back ends with its lease.
        with contextlib.suppress(RedisError, OSError):
            await telling

    # --- what engines say ---

    async def _read_loop(self) -> None:
        await self._persist("read replies", self._read_once)

    async def _read_once(self) -> None:
        for reply in await self._link.read_replies():
            for event in reply.events:
                request = self._requests.get(event.key.request_id)
                if request is None:
                    continue
                choice = request.choices[event.key.choice]
                if choice.finished or event.attempt != choice.attempt:
                    continue
                try:
                    verdict = self._delivery.deliver(request, choice, event, engine_id=reply.engine_id)
                except Exception:  # One request's text is no reason to lose what is said of all the others.
                    logger.exception("cannot deliver to %s", event.key.request_id)
                    verdict = EngineFailure("the answer cannot be turned into text")
                self._apply(request, choice, verdict)

    def _apply(self, request: InFlight, choice: Choice, verdict: Verdict) -> None:
        if isinstance(verdict, DomainError):
            request.blame_engine_of(choice)
            self._fail(request, verdict)
            return
        if verdict == "resubmit":
            self._submit(request, [choice])
            return
        if verdict == "stopped":
            self._call_offs.add(request.generation.pool, choice)
            self._run_errand(self._tell_call_offs())
        if request.finished:
            self._end(request, outcome=f"finished:{request.choices[0].finish_reason}")
        elif request.all_started:
            self._release(request)

    # --- housekeeping ---

    async def _tick_loop(self) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            await asyncio.sleep(_TICK_SECONDS)
            ticks += 1
            await self._tick(renew=ticks % _RENEW_EVERY_TICKS == 0)

        await self._persist("keep house", tick)

    async def _tick(self, *, renew: bool) -> None:
        await self._caretaker.look()
        if renew:
            held = [(r.permit, r.spent) for r in self._requests.values() if r.permit is not None]
            await self._waiting_room.renew(held)

    async def _persist(self, what: str, once: Callable[[], Coroutine[Any, Any, None]]) -> None:
        backoff = 0.1
        while not self._stopping:
            try:
                await once()
                backoff = 0.1
            except (RedisError, OSError):
                logger.warning("cannot %s: Redis is out of reach; trying again in %.1f s", what, backoff)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
            except Exception:
                logger.exception("cannot %s", what)
                await asyncio.sleep(backoff)

    def _run_errand(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end.

    On Python 3.11 a cancellation that meets the end of a `wait_for`, as the Redis client uses for sending, is lost; so
    it is repeated until it is heard.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
