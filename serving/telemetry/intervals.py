"""What an owner measures of its requests, and how it collects that between two publications."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.sketches import Sketch, sketch_values

OWNER_LOST = "failed:owner_lost"
"""The outcome of requests whose owner died with them."""

_PROOF_EVERY_SECONDS = 5.0


class Intervals(msgspec.Struct, frozen=True, array_like=True):
    """A sketch of each interval, in seconds."""

    queue_time: Sketch = Sketch()
    ttft: Sketch = Sketch()
    itl: Sketch = Sketch()
    e2e: Sketch = Sketch()


class OwnerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """An owner's books since its start. At every moment submitted = finished + aborted + refused + failed + waiting +
    running. Being totals and not differences, they may be written twice, or again after Redis has lost them."""

    counts: dict[str, int] = {}
    num_waiting: int = 0
    num_running: int = 0


class IntervalBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What one owner measured of one pool's requests in `seconds`. `sequence` counts its batches from 1; `counts` are
    those of this batch alone, `totals` the books at its end."""

    owner_id: OwnerId
    pool: PoolName
    sequence: int
    seconds: float
    intervals: Intervals
    counts: dict[str, int]
    totals: OwnerTotals


encode_batch = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(IntervalBatch).decode
encode_totals = msgspec.msgpack.Encoder().encode
decode_totals = msgspec.msgpack.Decoder(OwnerTotals).decode


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
        self._queue_times: list[float] = []
        self._ttfts: list[float] = []
        self._itls: list[float] = []
        self._e2es: list[float] = []
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._num_in_flight = 0
        self._num_running = 0
        self._sequence = 0
        self._flushed_at = clock()
        self._flushed_totals = OwnerTotals()

    # Called for every token: to append is all that is done here, the sketch is drawn at the flush.

    def record_queue(self, seconds: float) -> None:
        """A request was first scheduled, so long after it arrived."""
        self._queue_times.append(seconds)

    def record_ttft(self, seconds: float) -> None:
        """A request's first token was sent, so long after it arrived."""
        self._ttfts.append(seconds)

    def record_itl(self, seconds: float) -> None:
        """A stream's next token was sent, so long after the one before."""
        self._itls.append(seconds)

    def record_e2e(self, seconds: float) -> None:
        """A request's last token was sent, so long after it arrived."""
        self._e2es.append(seconds)

    def count_submitted(self) -> None:
        """A request was let in: it waits."""
        self._counts["submitted"] += 1
        self._num_in_flight += 1

    def count_scheduled(self) -> None:
        """A waiting request runs from now on."""
        self._num_running += 1

    def count_ended(self, outcome: str, *, was_running: bool) -> None:
        """A request ended, which `count_submitted` and, with `was_running`, `count_scheduled` had told of."""
        self._counts[outcome] += 1
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
        batch = IntervalBatch(
            owner_id=self._owner_id,
            pool=self._pool,
            sequence=self._sequence,
            seconds=seconds,
            intervals=self._draw_intervals(),
            counts={name: count for name, count in self._counts.items() if count},
            totals=totals,
        )
        self._counts.clear()
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
        return bool(self._queue_times or self._ttfts or self._itls or self._e2es)

    def _owes_proof(self, seconds: float) -> bool:
        return self._sequence > 0 and seconds >= _PROOF_EVERY_SECONDS

    def _draw_intervals(self) -> Intervals:
        intervals = Intervals(
            queue_time=sketch_values(self._queue_times),
            ttft=sketch_values(self._ttfts),
            itl=sketch_values(self._itls),
            e2e=sketch_values(self._e2es),
        )
        for values in (self._queue_times, self._ttfts, self._itls, self._e2es):
            values.clear()
        return intervals
