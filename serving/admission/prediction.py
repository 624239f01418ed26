"""How long a request would wait, and whether it is better refused at once than served too late."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.admission.pace import PaceMeter, PoolPace
from serving.contracts import keys
from serving.contracts.errors import RETRY_SECONDS, PredictedTooLate
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.contracts.tunables import Tunables
from serving.outages import Outage

_LONGEST_RETRY_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """Sequences, and prompt tokens over all of them."""

    sequences: int = 0
    tokens: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.sequences + other.sequences, self.tokens + other.tokens)

    def __sub__(self, other: Load) -> Load:
        return Load(self.sequences - other.sequences, self.tokens - other.tokens)


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds until a request is first scheduled, and until its first token."""

    wait_seconds: float
    ttft_seconds: float


def predict(own: Load, *, ahead: Load, pace: PoolPace) -> Prediction:
    """What becomes of a request that comes behind all that wait.

    What waits has to be computed, and the first of its own sequences needs a place: the slower of the two decides. What
    is not known of the pace takes no time, so that nothing is refused on a guess. Who finds a place and nobody before
    it waits for nothing.
    """
    computing = _seconds(ahead.tokens, pace.prompt_tokens_per_second)
    leaving = _seconds(ahead.sequences + 1 - pace.num_free_places, pace.sequences_per_second)
    wait = max(computing, leaving) if ahead.sequences > 0 or pace.num_free_places < 1 else 0.0
    own_prefill = _seconds(own.tokens, pace.prompt_tokens_per_second)
    return Prediction(wait, wait + own_prefill if wait > 0 else 0.0)


def lateness(prediction: Prediction, *, tunables: Tunables, timeout_seconds: float | None) -> tuple[float, str] | None:
    """By how many seconds a request misses the objective or the deadline that it misses most, and which one in words;
    None where it meets them all."""
    ttft_ms, wait_ms = prediction.ttft_seconds * 1000, prediction.wait_seconds * 1000
    first_token = f"its first token is expected after {ttft_ms:.0f} ms, and slo_ttft_ms is {tunables.slo_ttft_ms:g}"
    waits = f"it is expected to wait {wait_ms:.0f} ms, and"
    missed = [(ttft_ms - tunables.slo_ttft_ms, first_token)]
    missed.append(
        (wait_ms - tunables.max_queue_wait_ms, f"{waits} max_queue_wait_ms is {tunables.max_queue_wait_ms:g}")
    )
    if timeout_seconds is not None:
        missed.append((wait_ms - timeout_seconds * 1000, f"{waits} its timeout is {timeout_seconds * 1000:.0f} ms"))
    worst_ms, words = max(missed)
    return (worst_ms / 1000, words) if worst_ms > 0 else None


class Predictor:
    """Owns the pace of each pool and since when it is without an engine, and counts what this process has begun, and is
    done, letting in; on the gateway's event loop.

    It counts everything that waits as served before a newcomer. Where the order is another than `fcfs` that is true for
    some and too pessimistic for others; who goes by an order of its own is the caller's to say.
    """

    def __init__(
        self, redis: Redis, pools: Iterable[PoolName], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._meters = {pool: PaceMeter() for pool in pools}
        self._absences = {pool: Outage(usual_seconds=RETRY_SECONDS, monotonic=monotonic) for pool in self._meters}
        self._begun = {pool: Load() for pool in self._meters}
        self._done = dict(self._begun)

    def look(self, pool: PoolName, snapshots: Sequence[EngineSnapshot], *, max_running: int) -> None:
        """Take in what the pool's engines that are ready say of themselves now."""
        self._meters[pool].look(snapshots, max_running=max_running)
        if snapshots:
            self._absences[pool].note_answer()
        else:
            self._absences[pool].note_silence()

    def pace_of(self, pool: PoolName) -> PoolPace:
        """The pool's pace as last seen."""
        return self._meters[pool].pace

    def retry_after_seconds(self, pool: PoolName) -> float:
        """When what waits at the pool's engines will have been served, from 1 to 60 s; 5 where the pace is unknown.
        Where no engine is ready: when one is expected, by the time that it took until now."""
        absence = self._absences[pool]
        if absence.lasts_seconds is not None:
            return absence.retry_after_seconds
        pace = self.pace_of(pool)
        if pace.prompt_tokens_per_second is None and pace.sequences_per_second is None:
            return RETRY_SECONDS
        return _clamped(predict(Load(), ahead=Load(pace.num_waiting, pace.num_waiting_tokens), pace=pace).wait_seconds)

    @contextlib.asynccontextmanager
    async def entering(
        self, pool: PoolName, own: Load, *, tunables: Tunables, timeout_seconds: float | None
    ) -> AsyncIterator[None]:
        """Raise `PredictedTooLate` where the pool would serve the request too late; else let it enter within this
        block, in which those that come at the same time see it."""
        done = self._done[pool]
        ahead = await self._read_ahead(pool)
        # Who was entering at any time meanwhile may be missing there: it counts once more rather than not at all.
        ahead += self._begun[pool] - done
        late = lateness(
            predict(own, ahead=ahead, pace=self.pace_of(pool)), tunables=tunables, timeout_seconds=timeout_seconds
        )
        if late is not None:
            seconds, words = late
            raise PredictedTooLate(f"refused at once: {words}", retry_after_seconds=_clamped(seconds))
        self._begun[pool] += own
        try:
            yield
        finally:
            self._done[pool] += own

    async def _read_ahead(self, pool: PoolName) -> Load:
        """All that waits: what the door let in and nobody has scheduled, and what had to give way and waits again."""
        pace = self.pace_of(pool)
        stored: list[bytes | None] = []
        with contextlib.suppress(RedisError, OSError):  # the door will say what that means
            names = ["total:requests", "total:tokens"]
            stored = cast("list[bytes | None]", await self._redis.hmget(keys.permit_weights(pool), names))
        sequences, tokens = (int(value or 0) for value in stored or (0, 0))
        return Load(max(sequences, pace.num_waiting), max(tokens, pace.num_waiting_tokens))


def _seconds(amount: float, rate: float | None) -> float:
    return amount / rate if rate and amount > 0 else 0.0


def _clamped(seconds: float) -> float:
    return float(max(1, math.ceil(min(_LONGEST_RETRY_SECONDS, seconds))))
