"""The engines that live, as their heartbeats tell, and how fast they are."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from typing import cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot, decode_snapshot
from serving.telemetry.frames import StepRates

logger = logging.getLogger(__name__)

_FORGET_SECONDS = 30.0
_RATE_SECONDS = 5.0


async def live_engines(redis: Redis, pool: PoolName) -> list[EngineSnapshot]:
    """The snapshots of the pool's engines whose heart beats, in the order of their ids.

    Engines that have not beaten for half a minute are forgotten by the way, their control streams too. Errors of
    Redis pass through.
    """
    raw_ids = cast("list[bytes]", await redis.zrange(keys.engines(pool), 0, -1))
    ids = [EngineId(raw.decode()) for raw in raw_ids]
    if not ids:
        return []
    answers = cast("list[bytes | None]", await redis.mget([keys.heartbeat(id_) for id_ in ids]))
    beats = dict(zip(ids, answers, strict=True))
    await _forget_dead(redis, pool, [id_ for id_, beat in beats.items() if beat is None])
    snapshots = [_decode(id_, beat) for id_, beat in sorted(beats.items()) if beat is not None]
    return [snapshot for snapshot in snapshots if snapshot is not None]


def _decode(engine_id: EngineId, beat: bytes) -> EngineSnapshot | None:
    try:
        return decode_snapshot(beat)
    except msgspec.MsgspecError as error:
        logger.warning("engine %s says what this version does not understand: %s", engine_id, error)
        return None


async def _forget_dead(redis: Redis, pool: PoolName, ids: list[EngineId]) -> None:
    if not ids:
        return
    seconds, _ = await redis.time()
    scores = await redis.zmscore(keys.engines(pool), ids)  # type: ignore[arg-type]
    dead = [id_ for id_, score in zip(ids, scores, strict=True) if score and seconds - score > _FORGET_SECONDS]
    if not dead:
        return
    pipe = redis.pipeline(transaction=False)
    pipe.zrem(keys.engines(pool), *dead)
    pipe.delete(*(keys.control(id_) for id_ in dead))
    await pipe.execute()


class TokenRates:
    """Owns the engines' last few snapshots, and so their rates; used by one thread.

    A rate is the difference of two of an engine's counters over the difference of its own uptimes, some five seconds
    apart: exact, however late the snapshots were read.
    """

    def __init__(self) -> None:
        self._histories: dict[EngineId, deque[EngineSnapshot]] = {}

    def add(self, snapshots: Iterable[EngineSnapshot]) -> None:
        """Take in the engines' newest snapshots; an engine that is not among them is forgotten."""
        self._histories = {
            snapshot.engine_id: _extended(self._histories.get(snapshot.engine_id, deque()), snapshot)
            for snapshot in snapshots
        }

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens computed or found cached a second, over all engines."""
        return sum(
            (history[-1].prompt_tokens_total - history[0].prompt_tokens_total) / _seconds(history)
            for history in self._histories.values()
        )

    @property
    def generated_tokens_per_second(self) -> float:
        """Tokens generated a second, over all engines."""
        return sum(
            (history[-1].generated_tokens_total - history[0].generated_tokens_total) / _seconds(history)
            for history in self._histories.values()
        )

    @property
    def prefix_hit_ratio(self) -> float | None:
        """Share of the context tokens of sequences that started lately which were found cached, over all engines; None
        where none started."""
        ends = [(history[0], history[-1]) for history in self._histories.values()]
        num_query = sum(last.prefix_query_tokens_total - first.prefix_query_tokens_total for first, last in ends)
        num_hit = sum(last.prefix_hit_tokens_total - first.prefix_hit_tokens_total for first, last in ends)
        return num_hit / num_query if num_query else None

    @property
    def draft_acceptance_ratio(self) -> float | None:
        """Share of the tokens guessed lately which were right, over all engines; None where none was guessed."""
        num_drafted = self._gained("drafted_tokens_total")
        return self._gained("accepted_tokens_total") / num_drafted if num_drafted else None

    @property
    def steps(self) -> StepRates:
        """What the steps of the last seconds were like, over all engines."""
        num_steps = self._gained("steps_total")
        preemptions = sum(
            (history[-1].preemptions_total - history[0].preemptions_total) / _seconds(history)
            for history in self._histories.values()
        )
        if not num_steps:
            return StepRates(preemptions_per_second=preemptions)
        return StepRates(
            prefill_tokens_per_step=self._gained("prefill_tokens_total") / num_steps,
            decode_tokens_per_step=self._gained("decode_tokens_total") / num_steps,
            step_ms=1000 * self._gained("step_seconds_total") / num_steps,
            preemptions_per_second=preemptions,
        )

    def _gained(self, counter: str) -> float:
        """By how much a counter of each engine grew, added up."""
        ends = [(history[0], history[-1]) for history in self._histories.values()]
        return math.fsum(getattr(last, counter) - getattr(first, counter) for first, last in ends)


def _extended(history: deque[EngineSnapshot], snapshot: EngineSnapshot) -> deque[EngineSnapshot]:
    if not history or snapshot.uptime_seconds > history[-1].uptime_seconds:
        history.append(snapshot)
    while len(history) > 2 and history[1].uptime_seconds <= snapshot.uptime_seconds - _RATE_SECONDS:
        history.popleft()
    return history


def _seconds(history: deque[EngineSnapshot]) -> float:
    """Between the first and the last; infinite where there is but one, so that the rate is nought."""
    elapsed = history[-1].uptime_seconds - history[0].uptime_seconds
    return elapsed if elapsed > 0 else float("inf")
