"""A hundred thousand known durations of each interval, and a process that publishes one owner's share of them.

As a program: `python -m tests.telemetry.known_values URL OWNER`.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import numpy.typing as npt
from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.intervals import IntervalRecorder, encode_batch

POOL = PoolName("known")
READY, BEGINNING = "test:ready", "test:beginning"
NUM_VALUES, NUM_OWNERS, NUM_SLOTS, SLOT_SECONDS = 100_000, 5, 180, 5

Values = dict[str, npt.NDArray[np.float64]]


def known_values() -> Values:
    """By interval: one distribution each, in seconds."""
    draw = np.random.default_rng(20)
    fast, slow = draw.normal(0.012, 0.001, NUM_VALUES), draw.normal(0.4, 0.05, NUM_VALUES)
    return {
        "queue_time_seconds": draw.lognormal(-3.0, 1.5, NUM_VALUES),
        "ttft_seconds": draw.uniform(0.05, 2.0, NUM_VALUES),
        "itl_seconds": np.where(draw.random(NUM_VALUES) < 0.94, fast, slow),
        "e2e_seconds": 0.5 * (1 + draw.pareto(1.1, NUM_VALUES)),
    }


def values_of_slot(values: Values, slot: int) -> Values:
    """What is measured in one slot of five seconds; owners take the slots in turn."""
    return {name: column[slot::NUM_SLOTS] for name, column in values.items()}


def publish_share(redis: Redis, owner: int) -> None:
    """Publish an owner's slots of the last quarter of an hour, each once the slot before is there."""
    values = known_values()
    recorder = IntervalRecorder(owner_id=OwnerId(f"owner-{owner}"), pool=POOL)
    redis.incr(READY)
    while (beginning := redis.get(BEGINNING)) is None:
        time.sleep(0.01)
    for slot in range(owner, NUM_SLOTS, NUM_OWNERS):
        _record(recorder, values_of_slot(values, slot))
        batch = recorder.flush()
        assert batch is not None
        while redis.xlen(keys.intervals(POOL)) < slot:
            time.sleep(0.001)
        entry_id = f"{(int(beginning) + slot * SLOT_SECONDS) * 1000}-0"
        redis.xadd(keys.intervals(POOL), {keys.FIELD: encode_batch(batch)}, id=entry_id)


def _record(recorder: IntervalRecorder, values: Values) -> None:
    record = {
        "queue_time_seconds": recorder.record_queue,
        "ttft_seconds": recorder.record_ttft,
        "itl_seconds": recorder.record_itl,
        "e2e_seconds": recorder.record_e2e,
    }
    for name, column in values.items():
        for value in column.tolist():
            record[name](value)


if __name__ == "__main__":
    with Redis.from_url(sys.argv[1]) as client:
        publish_share(client, int(sys.argv[2]))
