"""What a run came to, whether it was played or simulated: figures by class and over time."""

from __future__ import annotations

from typing import Literal

import msgspec

Ending = Literal["finished", "refused", "failed", "cancelled"]
"""How a request ended: `refused` by the server's own policy (429, or a 503 that names when to come back), `cancelled`
by its client as the workload asked."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request as its client saw it. `due_seconds` and `end_seconds` count from the run's beginning; the intervals
    count from when it was due, not from when it was sent, and are None where that never came. `tpot_seconds` is the
    mean gap between two tokens, `longest_gap_seconds` the longest between two arrivals of text. `queue_seconds` is the
    server's own account of the wait until it was first scheduled, where it gives one. `is_warm_up` is played, and
    counts in no figure."""

    index: int
    request_class: str
    tenant: str
    due_seconds: float
    end_seconds: float
    ending: Ending
    num_prompt_tokens: int
    num_output_tokens: int
    is_streamed: bool
    is_warm_up: bool = False
    sent_late_seconds: float = 0.0
    queue_seconds: float | None = None
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    longest_gap_seconds: float | None = None
    e2e_seconds: float | None = None
    code: str = ""
    retry_after_seconds: float | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of `count` measured values, in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one class, or of all, without those of the warm-up. Rates are over the measured time. Requests that
    met their class's SLO are goodput; refused, failed and cancelled ones do not. `slo_met_ratio` is their share of
    those that were not cancelled (None where there were none). `num_delayed` waited for more than a second until they
    were first scheduled. Intervals are of finished and cancelled requests: what was refused or failed has none."""

    num_requests: int
    num_finished: int
    num_refused: int
    num_failed: int
    num_cancelled: int
    num_delayed: int
    requests_per_second: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    goodput_per_second: float
    slo_met_ratio: float | None
    queue_ms: Percentiles | None
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a run: `seconds` from `at_seconds`, warm-up included. Requests count where they ended, but for
    `num_arrived`. Gauges are means of what was seen in the stretch, None where nobody looked."""

    at_seconds: float
    seconds: float
    num_arrived: int
    num_finished: int
    num_refused: int
    num_failed: int
    num_cancelled: int
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    goodput_per_second: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    num_running: float | None = None
    num_waiting: float | None = None
    kv_used_ratio: float | None = None
    busy_ratio: float | None = None
    accelerator_ratio: float | None = None


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run came to. `measured_seconds` is from the warm-up's end to the end of the last request, or of the
    duration where that is later. Peaks are of all of the server's engines that told theirs; those of permits (what the
    door counted as waiting) and of KV are of the whole run, warm-up included. `refused_by_code` and
    `failed_by_code` count requests; `first_failure` is one in the server's words. Of an open loop that was played,
    one request of a hundred was sent `sent_late_p99_ms` after it was due, or later: so far the load generator, not the
    server, is what was measured. `notes` say what a reader must know."""

    workload: str
    is_simulated: bool
    is_open_loop: bool
    warm_up_seconds: float
    measured_seconds: float
    num_warm_up_requests: int
    total: Figures
    classes: dict[str, Figures]
    moments: tuple[Moment, ...]
    refused_by_code: dict[str, int] = {}
    failed_by_code: dict[str, int] = {}
    first_failure: str = ""
    peak_host_memory_bytes: int | None = None
    peak_device_memory_bytes: int | None = None
    mean_busy_ratio: float | None = None
    mean_accelerator_ratio: float | None = None
    preemptions: int | None = None
    padded_tokens: int | None = None
    idle_slot_steps: int | None = None
    peak_permits_requests: int | None = None
    peak_permits_tokens: int | None = None
    peak_kv_used_ratio: float | None = None
    sent_late_p99_ms: float | None = None
    notes: tuple[str, ...] = ()
