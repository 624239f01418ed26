"""From the engine's step records to Redis, off the engine's thread: the picture that consoles draw of the batch."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import EngineId
from serving.contracts.messages import SequenceKey
from serving.contracts.steps import (
    DECODE,
    KEPT_STEPS,
    LIFE_SECONDS,
    MAX_WAITING,
    PREEMPTED,
    PREFILL,
    StepBatch,
    StepRow,
    encode_steps,
)
from serving.engine.stats import StepRecord

logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.25
"""How long steps gather before they are sent together."""

_MAX_QUEUED_STEPS = 2 * KEPT_STEPS
_MAX_STEPS_A_BATCH = 200
_PAUSE_SECONDS = 1.0
_KINDS = {"prefill": PREFILL, "decode": DECODE, "preempted": PREEMPTED}


class StepsPublisher:
    """Owns the queue of step records that are not sent yet, and the thread that sends them.

    Always, not only while someone watches: so the last steps are there as a page opens, and those of an engine that
    died for a quarter of an hour. Steps may be lost and are never sent late: while Redis is out of reach the queue's
    oldest are dropped, which shows as a hole in their numbers, and is counted. `wall_clock` dates them.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        engine_id: EngineId,
        gather_seconds: float = GATHER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._engine_id = engine_id
        self._gather_seconds = gather_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._records: deque[StepRecord] = deque(maxlen=_MAX_QUEUED_STEPS)
        self._has_records = threading.Event()
        self._stopping = threading.Event()
        self._newest_taken = 0
        self._num_dropped = 0
        self._works = True
        self._thread = threading.Thread(target=self._send_all, name="steps-publisher", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def publish(self, records: Iterable[StepRecord]) -> None:
        """Queue records of steps that follow those queued before. Never blocks; called by the engine's thread."""
        self._records.extend(records)
        if self._records and not self._has_records.is_set():
            self._has_records.set()

    def stop(self, *, timeout_seconds: float) -> None:
        """Send what is queued, if Redis takes it at once, then end the thread; gives up after `timeout_seconds`."""
        self._stopping.set()
        self._has_records.set()
        self._thread.join(timeout_seconds)

    def _send_all(self) -> None:
        while not self._stopping.is_set():
            self._has_records.wait()
            self._stopping.wait(self._gather_seconds)
            self._has_records.clear()
            self._send_queued()
        self._send_queued()

    def _send_queued(self) -> None:
        while self._records and self._send_some():
            pass

    def _send_some(self) -> bool:
        """Send the oldest of the queue; whether Redis took them. What it does not take is dropped."""
        records = self._take()
        try:
            self._send(records)
        except (RedisError, OSError) as error:
            self._num_dropped += len(records)
            if self._works:
                logger.warning("steps cannot be published, and are dropped until they can: %s", error)
            self._works = False
            self._stopping.wait(_PAUSE_SECONDS)
            return False
        except Exception:
            self._num_dropped += len(records)
            logger.exception("%d steps cannot be published, and are dropped", len(records))
            return True
        if not self._works:
            logger.info("steps are published again; %d were dropped so far", self._num_dropped)
        self._works = True
        return True

    def _take(self) -> list[StepRecord]:
        records: list[StepRecord] = []
        while self._records and len(records) < _MAX_STEPS_A_BATCH:
            # The engine's thread may take the place of the oldest meanwhile: then it is lost, and the next is taken.
            record = self._records.popleft()
            self._num_dropped += record.step - self._newest_taken - 1
            self._newest_taken = record.step
            records.append(record)
        return records

    def _send(self, records: list[StepRecord]) -> None:
        batch = batch_of(
            records,
            engine_id=self._engine_id,
            num_dropped=self._num_dropped,
            clock_offset=self._wall_clock() - self._clock(),
        )
        key, newest = keys.steps(self._engine_id), records[-1].step
        oldest = max(0, newest - KEPT_STEPS + 1)
        pipe = self._redis.pipeline(transaction=False)
        pipe.xadd(key, {keys.FIELD: encode_steps(batch)}, id=f"{newest}-0", minid=f"{oldest}-0", approximate=False)
        pipe.expire(key, LIFE_SECONDS)
        pipe.execute()


def batch_of(records: Iterable[StepRecord], *, engine_id: EngineId, num_dropped: int, clock_offset: float) -> StepBatch:
    """Records as they are published. `clock_offset` is what the wall clock is ahead of the engine's, in seconds."""
    places: dict[SequenceKey, int] = {}
    rows = [_row_of(record, places=places, clock_offset=clock_offset) for record in records]
    return StepBatch(engine_id, list(places), rows, num_dropped)


def _row_of(record: StepRecord, *, places: dict[SequenceKey, int], clock_offset: float) -> StepRow:
    decoding: list[int] = []
    others: list[int] = []
    for member in record.members:
        place = places.setdefault(member.key, len(places))
        if member.kind == "decode" and member.num_tokens == 1:
            decoding.append(place)
        else:
            others += (place, _KINDS[member.kind], member.num_tokens)
    return StepRow(
        step=record.step,
        unix_seconds=round(record.started_at + clock_offset, 3),
        total_ms=_milliseconds(record.total_seconds),
        schedule_ms=_milliseconds(record.schedule_seconds),
        prepare_ms=_milliseconds(record.prepare_seconds),
        forward_ms=_milliseconds(record.forward_seconds),
        sample_ms=_milliseconds(record.sample_seconds),
        update_ms=_milliseconds(record.update_seconds),
        num_prefill_tokens=record.num_prefill_tokens,
        num_decode_tokens=record.num_decode_tokens,
        num_padded_tokens=record.num_padded_tokens,
        max_batch_tokens=record.max_batch_tokens,
        num_running=record.num_running,
        num_waiting=record.num_waiting,
        kv_blocks_used=record.kv_blocks_used,
        tunables_version=record.tunables_version,
        is_static=record.mode == "static",
        failed=record.failed,
        decoding=decoding,
        others=others,
        ended=[places.setdefault(key, len(places)) for key in record.ended],
        waiting=[places.setdefault(key, len(places)) for key in record.waiting[:MAX_WAITING]],
        num_context_tokens=record.num_context_tokens,
        num_prefill_positions=record.num_prefill_positions,
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
