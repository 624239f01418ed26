"""The live frame of a pool: what the monitor merges twice a second and everyone reads.

A frame is written to Redis whole, in msgpack, for those who ask; a shorter form of it in JSON is broadcast to the
consoles, and once a second its `Point` is added to the history that a console draws when it opens.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.books import Books
from serving.telemetry.events import PoolEventInfo
from serving.telemetry.intervals import Intervals
from serving.telemetry.sketches import IntervalSummary, summarise

WINDOWS_SECONDS = (10, 60, 300, 900)
"""The windows that every frame summarises, so that a reader chooses one and merges nothing."""
_ONE_A_WINDOW = msgspec.Meta(min_length=len(WINDOWS_SECONDS), max_length=len(WINDOWS_SECONDS))
SNAPSHOT_WINDOW_SECONDS = 60
INTERVAL_NAMES = ("queue_time_seconds", "ttft_seconds", "itl_seconds", "e2e_seconds")
PERCENTILES = (50, 90, 95, 99)
"""Those that points hold, in their order."""
_ONE_A_PERCENTILE = msgspec.Meta(min_length=len(PERCENTILES), max_length=len(PERCENTILES))


class IntervalSummaries(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of each interval over one window, in seconds."""

    queue_time_seconds: IntervalSummary = IntervalSummary()
    ttft_seconds: IntervalSummary = IntervalSummary()
    itl_seconds: IntervalSummary = IntervalSummary()
    e2e_seconds: IntervalSummary = IntervalSummary()


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What some of a pool's engines did over one window: its intervals, and how many of their requests ended, by
    outcome (what was refused at the door, before an engine had it, is in no engine's share)."""

    intervals: IntervalSummaries = IntervalSummaries()
    ended: dict[str, int] = {}


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a trial: its last minute, and the whole of it."""

    minute: Share = Share()
    whole: Share = Share()


class TrialFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A version that one engine tries, and what was measured of that engine's requests and of the other engines'
    since `since` (unix seconds), though no further back than the last `seconds`: percentiles are of merged sketches."""

    version: int
    engine_id: EngineId
    since: float
    seconds: int
    tried: Side = Side()
    others: Side = Side()


class LiveTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A version that one engine tries since `since` (unix seconds), as consoles are told of it."""

    version: int
    engine_id: EngineId
    since: float


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One moment of a pool, as charts draw it: all engines added up. Sent as an array, in this order.

    `unix_seconds` is Redis's time. `num_waiting` and `num_waiting_tokens` are sequences and their tokens, those in
    the inbox included. `kv_used_ratio` (held by live sequences) and `kv_cached_ratio` are shares of all KV blocks.
    `utilisation_ratio` is the mean of the engines': the accelerator's where there is one, otherwise the busy share.
    `memory_bytes` is the accelerators' memory in use (of one that engines share, once), otherwise the engines' resident
    memory. `tunables_version` is the lowest that any engine runs: what is in force everywhere; None without an engine,
    or while one runs none that was stored. `percentiles` are seconds, or None where nothing was measured:
    `[window][interval][percentile]`, as `WINDOWS_SECONDS`, `INTERVAL_NAMES` and `PERCENTILES` order them.

    `num_waiting_long` are those of `num_waiting` that wait in an engine's lane of long prompts. The tokens per step and
    `step_ms` are means over the steps of the last seconds (nought tokens and no time where there were none), the rates
    are of the last seconds too: of requests that ended, and, as goodput, of those that met the objectives.
    `refused_per_second` tells of the pool's own refusals. `prefix_hit_ratio` is None where nothing started,
    `draft_acceptance_ratio` (of the tokens guessed, those that were right) where none was guessed.

    What follows an older monitor does not tell (None). `num_waiting_long_tokens` are the part of `num_waiting_tokens`
    in that lane, None also where an older engine waits with some. By name, sparse, and of the largest eight, the others
    being `other`: `waiting_by_priority` (sequences by their priority, those still in the inbox as `unread`), and
    `refusals_per_second` by code (`rejected:<code>` before any pool had it, of all pools). `utilisation_by_engine` and
    `memory_by_engine` are what `utilisation_ratio` and `memory_bytes` are of, by the end of the engines' ids: of the
    first eight, `other` being the others' mean.
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
    percentiles: list[list[Annotated[list[float | None], _ONE_A_PERCENTILE]]]
    num_waiting_long: int = 0
    prefill_tokens_per_step: float = 0.0
    decode_tokens_per_step: float = 0.0
    step_ms: float | None = None
    preemptions_per_second: float = 0.0
    prefix_hit_ratio: float | None = None
    finished_per_second: float = 0.0
    refused_per_second: float = 0.0
    failed_per_second: float = 0.0
    aborted_per_second: float = 0.0
    goodput_per_second: float = 0.0
    kv_free_ratio: float | None = None
    num_waiting_long_tokens: int | None = None
    waiting_by_priority: dict[str, int] | None = None
    refusals_per_second: dict[str, float] | None = None
    utilisation_by_engine: dict[str, float] | None = None
    memory_by_engine: dict[str, int] | None = None
    draft_acceptance_ratio: float | None = None


POINT_FIELDS = Point.__struct_fields__


class StepRates(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of the last seconds were like, over all engines; `step_ms` is None where there were none."""

    prefill_tokens_per_step: float = 0.0
    decode_tokens_per_step: float = 0.0
    step_ms: float | None = None
    preemptions_per_second: float = 0.0


class OutcomeRates(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of the last seconds a second, by how they ended; `goodput_per_second`: those that met the objectives."""

    finished_per_second: float = 0.0
    refused_per_second: float = 0.0
    failed_per_second: float = 0.0
    aborted_per_second: float = 0.0
    goodput_per_second: float = 0.0


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """The SLO of the announced tunables, in milliseconds."""

    ttft_ms: float
    itl_ms: float


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment. `sequence` grows by one a frame: a gap tells of frames missed. `unix_seconds` is Redis's
    time. `windows` are the intervals' summaries over each of `WINDOWS_SECONDS`, the rates, `prefix_hit_ratio` (found
    cached of the context tokens that started; None where none did) and `draft_acceptance_ratio` (right of the tokens
    guessed; None where none was) are of the last few seconds,
    `num_unread` and `num_unread_tokens` count what no engine has taken from the inbox, and `announced_version` is the
    version of tunables that engines should run (None: none is announced), whose objectives `slo` tells.
    `refusals_per_second` are by code, `rejected:<code>` those before any pool had the request (all pools together).
    `events` are the newest of the last minute, newest first. `trial` is None where no version is tried."""

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
    draft_acceptance_ratio: float | None = None
    step_rates: StepRates = StepRates()
    outcome_rates: OutcomeRates = OutcomeRates()
    refusals_per_second: dict[str, float] = {}
    slo: Objectives | None = None
    events: list[PoolEventInfo] = []
    trial: TrialFigures | None = None


class LiveFrame(msgspec.Struct, frozen=True, kw_only=True, tag="frame"):
    """What a console is sent of a frame, in JSON. `outcomes` are the books: counters by name, `waiting`, `running`.
    `slo` and `events` are as in the frame; of a `trial`, no figures."""

    sequence: int
    pool: PoolName
    point: Point
    announced_version: int | None
    outcomes: dict[str, int]
    engines: list[EngineSnapshot]
    slo: Objectives | None = None
    events: list[PoolEventInfo] = []
    trial: LiveTrial | None = None


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
