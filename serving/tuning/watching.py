"""What the active monitor does for changes after they were stored: it watches guardrails, and keeps canaries alive."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.conditions import ConditionWatch, Reading, Readings, is_too_early, readings_of
from serving.telemetry.frames import SNAPSHOT_WINDOW_SECONDS, Frame
from serving.telemetry.reconciler import Trial
from serving.tuning.canaries import successor_of
from serving.tuning.guardrails import Watched

logger = logging.getLogger(__name__)

_READ_SECONDS = 2.0
_GAP_SECONDS = 10.0
_GONE_SECONDS = 10.0
"""An engine that is restarted is away for some seconds, and may be the same one again where only Redis was."""


_Key = tuple[int, float]


class Standing(msgspec.Struct, frozen=True):
    """What is watched and tried at one moment, as the database has it."""

    watched: tuple[Watched, ...]
    trials: dict[PoolName, Trial]


class Book(Protocol):
    """The database, asked without blocking the loop. Each call may fail as a database does."""

    async def read(self) -> Standing: ...

    async def note_missed_since(self, watched: Watched, since: float | None) -> None: ...

    async def let_pass(self, watched: Watched) -> bool: ...

    async def take_back(self, watched: Watched, value: float) -> object: ...

    async def move(
        self, pool: PoolName, old: EngineId, new: EngineId, *, engines: Sequence[EngineSnapshot]
    ) -> bool: ...


class Watcher:
    """Owns what the guardrails of all pools were seen to do; on the monitor's event loop.

    A frame is judged at once, and what follows from it is done by one task beside the frames, which also reads the
    database every two seconds. Since when a bound is missed is kept there, so that a monitor that takes over goes on.
    The figures of a frame are of the last minute: a bound that was missed already when the change was stored is judged
    once that minute is over, since until then the change is not to blame. While one engine alone runs the version that
    is watched, that engine's figures are judged, and never the pool's.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._readings: dict[PoolName, Readings] = {}
        self._standing = Standing((), {})
        self._watches: dict[_Key, ConditionWatch] = {}
        self._kept: set[_Key] = set()
        self._gone_since: dict[PoolName, float] = {}
        self._seen_at: dict[PoolName, float] = {}
        self._todo: dict[object, Callable[[], Awaitable[object]]] = {}
        self._read_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._works = True

    async def __call__(self, frame: Frame) -> None:
        """See a pool's frame. What it leads to is done soon after."""
        self._notice_gap(frame)
        known = self._readings.setdefault(frame.pool, Readings())
        readings = known.see(frame)
        for watched in self._standing.watched:
            if watched.pool != frame.pool:
                continue
            metric = watched.condition.metric
            if self._is_tried(watched):
                self._judge_trial(watched, frame)
            elif not known.is_too_early(metric, readings.get(metric)):
                self._judge(watched, readings.get(metric), now=frame.unix_seconds)
        self._find_successor(frame)
        self._start_if_due(frame.unix_seconds)

    async def settled(self) -> None:
        """Wait until what the frames so far led to is done."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def end(self) -> None:
        """Break off what is being done; the database's own part of it comes to its end."""
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=0.5)

    def _notice_gap(self, frame: Frame) -> None:
        """After frames that this process did not make, be it that another monitor made them, the database knows more of
        what was missed than it does."""
        seen_at, now = self._seen_at.get(frame.pool), frame.unix_seconds
        self._seen_at[frame.pool] = now
        if seen_at is not None and not 0 <= now - seen_at <= _GAP_SECONDS:
            self._standing, self._watches, self._kept, self._gone_since = Standing((), {}), {}, set(), {}
            self._read_at = None

    def _is_tried(self, watched: Watched) -> bool:
        trial = self._standing.trials.get(watched.pool)
        return trial is not None and trial.tunables.version == watched.version

    def _judge_trial(self, watched: Watched, frame: Frame) -> None:
        """By the engine that tries the version; a frame that tells nothing of it says nothing for or against it."""
        trial, metric = frame.trial, watched.condition.metric
        if trial is None or trial.version != watched.version:
            return
        reading = readings_of(trial.tried.minute).get(metric)
        if not is_too_early(metric, reading, seconds=frame.unix_seconds - trial.since):
            self._judge(watched, reading, now=frame.unix_seconds)

    def _judge(self, watched: Watched, reading: Reading | None, *, now: float) -> None:
        # Its end is settled, and waits for the database alone: what comes after it changes nothing.
        if ("end", watched.id) in self._todo:
            return
        key = _key_of(watched)
        watch = self._watches.setdefault(key, ConditionWatch(watched.condition, missed_since=watched.missed_since))
        if reading is not None and reading.can_be_judged and not watched.condition.is_missed_by(reading.value):
            self._kept.add(key)
        before = watch.missed_since
        # What another monitor saw missed was found to be the change's doing.
        is_to_blame = before is not None or key in self._kept or now - watched.starts_at >= SNAPSHOT_WINDOW_SECONDS
        if watch.see(reading if is_to_blame else None, now=now) and reading is not None:
            self._todo["end", watched.id] = functools.partial(self._book.take_back, watched, reading.value)
        elif watch.missed_since is None and now - watched.starts_at >= watched.watch_seconds:
            self._todo["end", watched.id] = functools.partial(self._book.let_pass, watched)
        elif watch.missed_since != before:
            self._todo["since", watched.id] = functools.partial(
                self._book.note_missed_since, watched, watch.missed_since
            )

    def _find_successor(self, frame: Frame) -> None:
        """Let a restarted engine go on with what it tried."""
        pool, now = frame.pool, frame.unix_seconds
        trial = self._standing.trials.get(pool)
        if trial is None or any(engine.engine_id == trial.engine_id for engine in frame.engines):
            self._gone_since.pop(pool, None)
            return
        if now - self._gone_since.setdefault(pool, now) < _GONE_SECONDS:
            return
        new = successor_of(trial, frame.engines, now=now)
        if new is not None:
            self._todo["move", pool] = functools.partial(
                self._book.move, pool, trial.engine_id, new, engines=frame.engines
            )

    def _start_if_due(self, now: float) -> None:
        if self._task is not None and not self._task.done():
            return
        is_due = self._read_at is None or not 0 <= now - self._read_at < _READ_SECONDS
        if self._todo or is_due:
            self._read_at = now
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._todo:
                subject, act = next(iter(self._todo.items()))
                await act()
                # Another frame may have put another act in its place meanwhile.
                if self._todo.get(subject) is act:
                    del self._todo[subject]
            self._take(await self._book.read())
        except Exception as error:  # Whatever a database driver raises: what was to be done is tried again.
            if self._works:
                logger.warning("the database does not answer (%r): guardrails wait for it", error)
            self._works = False
        else:
            self._works = True

    def _take(self, standing: Standing) -> None:
        self._standing = standing
        keys = {_key_of(watched) for watched in standing.watched}
        self._watches = {key: watch for key, watch in self._watches.items() if key in keys}
        self._kept &= keys


def _key_of(watched: Watched) -> _Key:
    """One watch: when a canary is taken to all, another begins."""
    return watched.id, watched.starts_at
