"""The live frame of a pool: what the monitor merges twice a second and everyone reads."""

from __future__ import annotations

import msgspec

from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.books import Books
from serving.telemetry.intervals import Intervals
from serving.telemetry.sketches import IntervalSummary, summarise

WINDOW_SECONDS = 60


class IntervalSummaries(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of each interval over the frame's window, in seconds."""

    queue_time_seconds: IntervalSummary = IntervalSummary()
    ttft_seconds: IntervalSummary = IntervalSummary()
    itl_seconds: IntervalSummary = IntervalSummary()
    e2e_seconds: IntervalSummary = IntervalSummary()


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment. `sequence` grows by one a frame: a gap tells of frames missed. `unix_seconds` is Redis's
    time. The intervals are of the last minute, the rates of the last few seconds."""

    sequence: int
    unix_seconds: float
    pool: PoolName
    intervals: IntervalSummaries
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    engines: list[EngineSnapshot]
    books: Books


encode_frame = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode


def summarise_intervals(intervals: Intervals) -> IntervalSummaries:
    """Percentiles, count and mean of each."""
    return IntervalSummaries(
        queue_time_seconds=summarise(intervals.queue_time),
        ttft_seconds=summarise(intervals.ttft),
        itl_seconds=summarise(intervals.itl),
        e2e_seconds=summarise(intervals.e2e),
    )
