"""What a request takes on its way to the engine, as far as the server sees it. Blocking.

A queue time is counted from the request's arrival at the API to its first scheduling. It holds the checks at the door,
the reading of the prompt and the message to the engine; and, wherever somebody else is there, the rest of a step that
runs, and the wait for a place. Only the former is the way. So it is read from requests that came while the pool had no
other; where there were none, the shortest waits come nearest. What lies between client and server, and the way of the
answer back, the server cannot see: predictions of TTFT are short of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from serving.lab.costs.default import DEFAULT_COST
from serving.telemetry.request_rows import RequestFilter, RequestRow
from serving.telemetry.request_selectors import iterate_requests

LEAST_ALONE: Final = 5
LONGEST_WAY_SECONDS: Final = 0.25
"""What takes longer was waiting, whatever else is known."""

_NUM_REQUESTS = 1000
_SHORT_WAITS = 0.1
_LEAST_SECONDS = 1e-4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How long it takes, and of how many requests it was seen (0: the default model's)."""

    seconds: float
    num_requests: int


def read_way(pool: str) -> Way:
    """The way to this pool's engines, by its latest requests."""
    return way_of(list(iterate_requests(RequestFilter(pool=pool), limit=_NUM_REQUESTS)))


def way_of(rows: Sequence[RequestRow]) -> Way:
    """The median queue time of those that came while no other of these requests was there; where they are fewer than
    `LEAST_ALONE`, the tenth of the shortest of all; the default model's where neither can have been the way alone."""
    alone = _waits_of_those_alone(rows)
    waits = alone if len(alone) >= LEAST_ALONE else [row.queue_seconds for row in rows if row.queue_seconds is not None]
    if not waits:
        return Way(seconds=DEFAULT_COST.request_seconds, num_requests=0)
    seconds = float(np.quantile(waits, 0.5 if waits is alone else _SHORT_WAITS))
    if seconds > LONGEST_WAY_SECONDS:
        return Way(seconds=DEFAULT_COST.request_seconds, num_requests=0)
    return Way(seconds=max(_LEAST_SECONDS, seconds), num_requests=len(waits))


def _waits_of_those_alone(rows: Sequence[RequestRow]) -> list[float]:
    waits = []
    free_from = float("-inf")
    for row in sorted(rows, key=lambda row: row.arrived_at):
        began = row.arrived_at.timestamp()
        if began >= free_from and row.queue_seconds is not None:
            waits.append(row.queue_seconds)
        free_from = max(free_from, began + row.e2e_seconds)
    # Before the first there may have been others, which are not among these.
    return waits[1:]
