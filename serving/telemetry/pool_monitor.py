"""One pool's part of the monitor: what owners measured and engines say, merged into frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.telemetry.announced import read_announced
from serving.telemetry.books import read_books
from serving.telemetry.engines import TokenRates, live_engines
from serving.telemetry.events import read_newest_events
from serving.telemetry.frames import Frame, Objectives, TrialFigures, decode_frame, encode_frame, encode_live
from serving.telemetry.history import add_point
from serving.telemetry.inbox import count_inbox
from serving.telemetry.measurements import Measurements
from serving.telemetry.points import live_frame_of
from serving.telemetry.pool_watch import PoolWatch
from serving.telemetry.reconciler import Trial
from serving.telemetry.rejections import read_rejections
from serving.telemetry.stretches import Stretches
from serving.telemetry.trial_measurements import TrialMeasurements

logger = logging.getLogger(__name__)

_FRAME_LIFE_SECONDS = 300
_BROADCAST_SECONDS = 1.0
"""The longest that consoles may hold up the frames."""
_OBSERVER_SECONDS = 1.0
"""The longest that one observer may."""


class Broadcast(Protocol):
    """Sends a pool's live frame (the JSON of a `LiveFrame`) to whoever watches it."""

    async def __call__(self, pool: PoolName, *, sequence: int, frame: bytes) -> None: ...


class FrameObserver(Protocol):
    """Is shown every frame of every pool once it is written. What takes long is for a task of its own: the frames wait
    for it, though no longer than a second."""

    async def __call__(self, frame: Frame) -> None: ...


class PoolMonitor:
    """Owns what a pool's owners measured, what its engines last said, and the number of its frames; on the monitor's
    event loop.

    It begins a quarter of an hour back, so that a restarted monitor knows what the one before knew.
    """

    def __init__(
        self, redis: Redis, pool: PoolName, *, broadcast: Broadcast, observers: Sequence[FrameObserver] = ()
    ) -> None:
        self.pool = pool
        self._redis = redis
        self._broadcast = broadcast
        self._observers = tuple(observers)
        self._broadcast_works = True
        self._measured = Measurements(redis, pool)
        self._stretches = Stretches(redis, pool, measured=self._measured)
        self._watch = PoolWatch(redis, pool)
        self._tried: TrialMeasurements | None = None
        self._rates = TokenRates()
        self._frame_sequence: int | None = None
        self._last_point_at: int | None = None

    async def publish_frame(self, *, trial: Trial | None = None) -> None:
        """Read what is new, write the next frame and tell the consoles; sum up what is over. `trial` is what one of the
        pool's engines tries.

        Errors of Redis pass through, but for those of the telling: whoever asks for a frame gets it without.
        """
        try:
            frame = await self._look(trial)
            await self._write(frame)
            await self._stretches.close_due(now=int(frame.unix_seconds))
        except (RedisError, OSError):
            self._watch.forget_silences()
            raise
        for observer in self._observers:
            await self._show(observer, frame)

    async def _look(self, trial: Trial | None) -> Frame:
        seconds, microseconds = await self._redis.time()
        now = int(seconds)
        await self._measured.read(now=now)
        engines = await live_engines(self._redis, self.pool)
        self._rates.add(engines)
        num_unread, num_unread_tokens = await count_inbox(self._redis, self.pool)
        version, slo = await self._read_announced()
        books = await read_books(self._redis, self.pool)
        tally = self._measured.tally
        tally.take_counters(books=books.counts, rejections=await read_rejections(self._redis), at=now)
        sequence = await self._next_sequence()
        await self._watch.look(engines, now=float(now))
        return Frame(
            sequence=sequence,
            unix_seconds=now + microseconds / 1e6,
            pool=self.pool,
            windows=self._measured.summarise_windows(now=now),
            prompt_tokens_per_second=self._rates.prompt_tokens_per_second,
            generated_tokens_per_second=self._rates.generated_tokens_per_second,
            num_unread=num_unread,
            num_unread_tokens=num_unread_tokens,
            announced_version=version,
            engines=engines,
            books=books,
            prefix_hit_ratio=self._rates.prefix_hit_ratio,
            draft_acceptance_ratio=self._rates.draft_acceptance_ratio,
            step_rates=self._rates.steps,
            outcome_rates=tally.rates(now=now),
            refusals_per_second=tally.refusals_per_second(now=now),
            slo=slo,
            events=await read_newest_events(self._redis, self.pool, now=now),
            trial=await self._measure(trial, now=now),
        )

    async def _measure(self, trial: Trial | None, *, now: int) -> TrialFigures | None:
        if trial is None:
            self._tried = None
            return None
        if self._tried is None or self._tried.trial != trial:
            self._tried = TrialMeasurements(self._redis, self.pool, trial)
        await self._tried.read(now=now)
        return self._tried.figures(now=now)

    async def _write(self, frame: Frame) -> None:
        live = live_frame_of(frame)
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(keys.frame(self.pool), encode_frame(frame), ex=_FRAME_LIFE_SECONDS)
        second = int(frame.unix_seconds)
        if second != self._last_point_at:
            add_point(pipe, self.pool, live.point)
        await pipe.execute()
        self._frame_sequence, self._last_point_at = frame.sequence, second
        await self._tell_consoles(frame.sequence, encode_live(live))

    async def _show(self, observer: FrameObserver, frame: Frame) -> None:
        try:
            async with asyncio.timeout(_OBSERVER_SECONDS):
                await observer(frame)
        except Exception:
            logger.exception("pool %s: %r tripped over a frame", self.pool, observer)

    async def _tell_consoles(self, sequence: int, frame: bytes) -> None:
        try:
            async with asyncio.timeout(_BROADCAST_SECONDS):
                await self._broadcast(self.pool, sequence=sequence, frame=frame)
        except Exception as error:  # Whatever a channel layer raises.
            if self._broadcast_works:
                logger.warning("pool %s: consoles cannot be told of frames: %r", self.pool, error)
            self._broadcast_works = False
        else:
            self._broadcast_works = True

    async def _next_sequence(self) -> int:
        if self._frame_sequence is not None:
            return self._frame_sequence + 1
        earlier = decode_or_none(decode_frame, await self._redis.get(keys.frame(self.pool)))
        self._watch.begin(earlier)
        return 1 if earlier is None else earlier.sequence + 1

    async def _read_announced(self) -> tuple[int | None, Objectives | None]:
        announced = await read_announced(self._redis, self.pool)
        if announced is None:
            return None, None
        tunables = announced.tunables
        return announced.version, Objectives(ttft_ms=tunables.slo_ttft_ms, itl_ms=tunables.slo_itl_ms)
