"""What an owner measures of its requests, and how it collects that between two publications."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable

import msgspec

from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.telemetry.sketches import Sketch, add_sketches, sketch_values

OWNER_LOST = "failed:owner_lost"
"""The outcome of requests whose owner died with them."""

_PROOF_EVERY_SECONDS = 5.0


class Intervals(msgspec.Struct, frozen=True, array_like=True):
    """A sketch of each interval, in seconds."""

    queue_time: Sketch = Sketch()
    ttft: Sketch = Sketch()
    itl: Sketch = Sketch()
    e2e: Sketch = Sketch()


class EngineShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine did of a batch: its intervals, and how many of its requests ended, by outcome."""

    intervals: Intervals = Intervals()
    ended: dict[str, int] = {}


class OwnerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """An owner's books since its start. At every moment submitted = finished + aborted + refused + failed + waiting +
    running. Being totals and not differences, they may be written twice, or again after Redis has lost them."""

    counts: dict[str, int] = {}
    num_waiting: int = 0
    num_running: int = 0


class IntervalBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What one owner measured of one pool's requests in `seconds`. `sequence` counts its batches from 1; `counts` are
    those of this batch alone, `totals` the books at its end. `by_engine` are the shares of the engines that did any of
    it; what none had, as a refusal at the door, is in no share."""

    owner_id: OwnerId
    pool: PoolName
    sequence: int
    seconds: float
    intervals: Intervals
    counts: dict[str, int]
    totals: OwnerTotals
    by_engine: dict[EngineId, EngineShare] = {}


encode_batch = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(IntervalBatch).decode
encode_totals = msgspec.msgpack.Encoder().encode
decode_totals = msgspec.msgpack.Decoder(OwnerTotals).decode


class _Taken:
    """Owns what was measured of one engine's requests since the last flush; used by one thread."""

    def __init__(self) -> None:
        self.queue_times: list[float] = []
        self.ttfts: list[float] = []
        self.itls: list[float] = []
        self.e2es: list[float] = []
        self.ended: Counter[str] = Counter()

    @property
    def holds_intervals(self) -> bool:
        return bool(self.queue_times or self.ttfts or self.itls or self.e2es)

    def draw(self) -> Intervals:
        return Intervals(*map(sketch_values, (self.queue_times, self.ttfts, self.itls, self.e2es)))


class IntervalRecorder:
    """Owns what was measured of one pool's requests since the last flush; on the event loop of the gateway.

    Counters: `submitted`, `finished:<reason>`, `aborted`, `refused:<code>`, `failed:<code>`, `prompt_tokens`,
    `completion_tokens`, and `slo_met`, a part of those that finished. Durations are seconds; a negative one counts as
    none at all.
    """

    def __init__(self, *, owner_id: OwnerId, pool: PoolName, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner_id = owner_id
        self._pool = pool
        self._clock = clock
        self._taken: defaultdict[EngineId | None, _Taken] = defaultdict(_Taken)
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._num_in_flight = 0
        self._num_running = 0
        self._sequence = 0
        self._flushed_at = clock()
        self._flushed_totals = OwnerTotals()

    # Called for every token: to append is all that is done here, the sketch is drawn at the flush.

    def record_queue(self, seconds: float, *, engine_id: EngineId | None = None) -> None:
        """A request was first scheduled, so long after it arrived."""
        self._taken[engine_id].queue_times.append(seconds)

    def record_ttft(self, seconds: float, *, engine_id: EngineId | None = None) -> None:
        """A request's first token was sent, so long after it arrived."""
        self._taken[engine_id].ttfts.append(seconds)

    def record_itl(self, seconds: float, *, engine_id: EngineId | None = None) -> None:
        """A stream's next token was sent, so long after the one before."""
        self._taken[engine_id].itls.append(seconds)

    def record_e2e(self, seconds: float, *, engine_id: EngineId | None = None) -> None:
        """A request's last token was sent, so long after it arrived."""
        self._taken[engine_id].e2es.append(seconds)

    def count_submitted(self) -> None:
        """A request was let in: it waits."""
        self._counts["submitted"] += 1
        self._num_in_flight += 1

    def count_scheduled(self) -> None:
        """A waiting request runs from now on."""
        self._num_running += 1

    def count_ended(self, outcome: str, *, was_running: bool, engine_id: EngineId | None = None) -> None:
        """A request ended, which `count_submitted` and, with `was_running`, `count_scheduled` had told of."""
        self._counts[outcome] += 1
        self._taken[engine_id].ended[outcome] += 1
        self._num_in_flight -= 1
        self._num_running -= was_running

    def count_tokens(self, *, prompt: int, completion: int) -> None:
        """Tokens of a request that ended."""
        self._counts["prompt_tokens"] += prompt
        self._counts["completion_tokens"] += completion

    def count_slo_met(self) -> None:
        """A request finished and kept the objectives."""
        self._counts["slo_met"] += 1

    def flush(self) -> IntervalBatch | None:
        """All since the last flush, which then is forgotten here.

        None where nothing happened and nothing changed, but for one batch every five seconds: it shows that the owner
        lives, and restores its books where Redis has lost them. None, too, before the very first request.
        """
        now = self._clock()
        seconds = now - self._flushed_at
        totals = self._close_books()
        if totals == self._flushed_totals and not self._measured() and not self._owes_proof(seconds):
            return None
        self._sequence += 1
        by_engine = {engine_id: taken.draw() for engine_id, taken in self._taken.items()}
        batch = IntervalBatch(
            owner_id=self._owner_id,
            pool=self._pool,
            sequence=self._sequence,
            seconds=seconds,
            intervals=_add_up(list(by_engine.values())),
            counts={name: count for name, count in self._counts.items() if count},
            totals=totals,
            by_engine={
                engine_id: EngineShare(intervals=drawn, ended=dict(self._taken[engine_id].ended))
                for engine_id, drawn in by_engine.items()
                if engine_id is not None
            },
        )
        self._counts.clear()
        self._taken.clear()
        self._flushed_at = now
        self._flushed_totals = totals
        return batch

    def _close_books(self) -> OwnerTotals:
        """Bring the new counts into the totals. Where there are any, a batch follows, which clears them."""
        self._totals.update(self._counts)
        return OwnerTotals(
            counts=dict(self._totals),
            num_waiting=self._num_in_flight - self._num_running,
            num_running=self._num_running,
        )

    def _measured(self) -> bool:
        return any(taken.holds_intervals for taken in self._taken.values())

    def _owes_proof(self, seconds: float) -> bool:
        return self._sequence > 0 and seconds >= _PROOF_EVERY_SECONDS


def _add_up(parts: list[Intervals]) -> Intervals:
    """All intervals together. A sum of sketches loses nothing: what none had is measured once."""
    if not parts:
        return Intervals()
    return Intervals(*[add_sketches(sketches) for sketches in zip(*map(msgspec.structs.astuple, parts), strict=True)])
