"""The live frame of a pool: what the monitor merges twice a second and everyone reads.

A frame is written to Redis whole, in msgpack, for those who ask; a shorter form of it in JSON is broadcast to the
consoles, and once a second its `Point` is added to the history that a console draws when it opens.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.books import Books
from serving.telemetry.intervals import Intervals
from serving.telemetry.sketches import IntervalSummary, summarise

WINDOWS_SECONDS = (10, 60, 300, 900)
"""The windows that every frame summarises, so that a reader chooses one and merges nothing."""
_ONE_A_WINDOW = msgspec.Meta(min_length=len(WINDOWS_SECONDS), max_length=len(WINDOWS_SECONDS))
SNAPSHOT_WINDOW_SECONDS = 60
INTERVAL_NAMES = ("queue_time_seconds", "ttft_seconds", "itl_seconds", "e2e_seconds")
PERCENTILES = (50, 95, 99)
"""Those that points hold, in their order."""


class IntervalSummaries(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of each interval over one window, in seconds."""

    queue_time_seconds: IntervalSummary = IntervalSummary()
    ttft_seconds: IntervalSummary = IntervalSummary()
    itl_seconds: IntervalSummary = IntervalSummary()
    e2e_seconds: IntervalSummary = IntervalSummary()


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One moment of a pool, as charts draw it: all engines added up. Sent as an array, in this order.

    `unix_seconds` is Redis's time. `num_waiting` and `num_waiting_tokens` are sequences and their tokens, those in
    the inbox included. `kv_used_ratio` (held by live sequences) and `kv_cached_ratio` are shares of all KV blocks.
    `utilisation_ratio` is the mean of the engines': the accelerator's where there is one, otherwise the busy share.
    `memory_bytes` is the accelerators' memory in use, otherwise the engines' resident memory. `tunables_version` is the
    lowest that any engine runs: what is in force everywhere; None without an engine, or while one runs none that was
    stored. `percentiles` are seconds, or None where nothing was measured: `[window][interval][percentile]`, as
    `WINDOWS_SECONDS`, `INTERVAL_NAMES` and `PERCENTILES` order them.
    """

    unix_seconds: float
    num_waiting: int
    num_waiting_tokens: int
    num_running: int
    kv_used_ratio: float
    kv_cached_ratio: float
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    utilisation_ratio: float
    memory_bytes: int
    tunables_version: int | None
    percentiles: list[list[list[float | None]]]


POINT_FIELDS = Point.__struct_fields__


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment. `sequence` grows by one a frame: a gap tells of frames missed. `unix_seconds` is Redis's
    time. `windows` are the intervals' summaries over each of `WINDOWS_SECONDS`, the rates and `prefix_hit_ratio` (found
    cached of the context tokens that started; None where none did) are of the last few seconds,
    `num_unread` and `num_unread_tokens` count what no engine has taken from the inbox, and `announced_version` is the
    version of tunables that engines should run (None: none is announced)."""

    sequence: int
    unix_seconds: float
    pool: PoolName
    windows: Annotated[list[IntervalSummaries], _ONE_A_WINDOW]
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    num_unread: int
    num_unread_tokens: int
    announced_version: int | None
    engines: list[EngineSnapshot]
    books: Books
    prefix_hit_ratio: float | None = None


class LiveFrame(msgspec.Struct, frozen=True, kw_only=True, tag="frame"):
    """What a console is sent of a frame, in JSON. `outcomes` are the books: counters by name, `waiting`, `running`."""

    sequence: int
    pool: PoolName
    point: Point
    announced_version: int | None
    outcomes: dict[str, int]
    engines: list[EngineSnapshot]


encode_frame = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
encode_live = msgspec.json.Encoder().encode


def summarise_intervals(intervals: Intervals) -> IntervalSummaries:
    """Percentiles, count and mean of each."""
    return IntervalSummaries(
        queue_time_seconds=summarise(intervals.queue_time),
        ttft_seconds=summarise(intervals.ttft),
        itl_seconds=summarise(intervals.itl),
        e2e_seconds=summarise(intervals.e2e),
    )
