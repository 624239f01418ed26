"""What the engine counts and records of its steps."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Literal

import msgspec

from serving.contracts.messages import EngineState, SequenceKey

MemberKind = Literal["prefill", "decode", "preempted"]


class StepMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sequence's part in a step: tokens computed, or none where it was preempted."""

    key: SequenceKey
    kind: MemberKind
    num_tokens: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: who was in it and where the time went. `started_at` is in seconds of the engine's clock.

    `total_seconds` is from where the step began to where its result was taken in. With look-ahead a step begins where
    the one before ended, if it was planned earlier: so totals never overlap and sum up to the time that the engine was
    busy, and one is what a stream waits for its next token. The other times are parts of it. What planning and
    launching took while the step before was computed is no part of it but `hidden_seconds`.

    `ended` names the sequences that finished with it, of whatever reason, since the step before; `waiting` the first of
    those that wait after it, in the order in which they would be served. `failed` steps computed nothing that anyone
    received. `tunables_version`, `mode` and `max_batch_tokens` are what the step ran under. `num_context_tokens` are
    the positions that its decoding rows attended to, `num_prefill_positions` those of its prefill tokens, each summed.
    """

    step: int
    started_at: float
    schedule_seconds: float
    prepare_seconds: float
    forward_seconds: float
    sample_seconds: float
    update_seconds: float
    total_seconds: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padded_tokens: int
    num_running: int
    num_waiting: int
    kv_blocks_used: int
    tunables_version: int
    mode: str
    max_batch_tokens: int
    members: tuple[StepMember, ...]
    ended: tuple[SequenceKey, ...]
    waiting: tuple[SequenceKey, ...]
    failed: bool
    hidden_seconds: float = 0.0
    num_context_tokens: int = 0
    num_prefill_positions: int = 0


@dataclasses.dataclass(slots=True)
class Counters:
    """Owns the scheduler's running totals since the engine's start; written on the engine's thread only.

    `prompt_tokens` counts a prompt's tokens once: when they are first computed or, found cached, together with the
    first that is computed after them. Neither what is computed again after a preemption nor what a choice shares with
    its siblings counts any more. `left` counts the sequences that gave up a place in the batch for good.
    `discarded_tokens` were computed for sequences that had ended before the result was there: with look-ahead, one for
    each that ends at a token that could not be foreseen. `drafted_tokens` were guessed and computed, and
    `accepted_tokens` of them were right. `steps` counts those whose result was taken in. Of the `padded_tokens`,
    `idle_slot_steps` are slots that a static batch left empty.
    """

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    padded_tokens: int = 0
    idle_slot_steps: int = 0
    discarded_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    left: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounts:
    """The engine's part of an `EngineSnapshot`, field by field, as it stands between two steps."""

    state: EngineState
    max_model_len: int
    max_step_tokens: int | None
    tunables_version: int
    num_waiting: int
    num_waiting_tokens: int
    num_running: int
    block_size: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_free: int
    steps_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    preemptions_total: int
    padded_tokens_total: int
    idle_slot_steps_total: int
    discarded_tokens_total: int
    drafted_tokens_total: int
    accepted_tokens_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
    left_total: int
    num_waiting_long: int
    num_waiting_long_tokens: int
    waiting_by_priority: dict[str, int]
    prefill_tokens_total: int
    decode_tokens_total: int
    step_seconds_total: float
    busy_ratio: float
    last_step_ms: float


class StepLog:
    """Owns the latest step records and the measure of how busy the engine is; written on the engine's thread only."""

    def __init__(self, *, started_at: float, capacity: int = 512, busy_window_seconds: float = 10.0) -> None:
        self._records: deque[StepRecord] = deque(maxlen=capacity)
        self._started_at = started_at
        self._busy_window = busy_window_seconds
        self._busy: deque[tuple[float, float]] = deque()
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.step_seconds = 0.0
        """What all steps computed so far, again or in vain included, and how long that took."""

    def add(self, record: StepRecord) -> None:
        """Keep a record; the oldest goes when the log is full."""
        self._records.append(record)
        self.prefill_tokens += record.num_prefill_tokens
        self.decode_tokens += record.num_decode_tokens
        self.step_seconds += record.total_seconds
        ended_at = record.started_at + record.total_seconds
        self._busy.append((record.started_at, ended_at))
        self._forget_busy_before(ended_at - self._busy_window)

    def since(self, step: int) -> list[StepRecord]:
        """The kept records of steps after `step`, the oldest first."""
        newer = []
        for record in reversed(self._records):
            if record.step <= step:
                break
            newer.append(record)
        return newer[::-1]

    @property
    def last_step_seconds(self) -> float:
        """Duration of the last step; 0 before the first."""
        return self._records[-1].total_seconds if self._records else 0.0

    def busy_ratio(self, now: float) -> float:
        """Share of the last seconds (since the start, while that is shorter) that was spent in steps: 0 to 1."""
        begin = max(self._started_at, now - self._busy_window)
        self._forget_busy_before(begin)
        if now <= begin:
            return 0.0
        busy = sum(min(end, now) - max(start, begin) for start, end in self._busy)
        return min(1.0, max(0.0, busy / (now - begin)))

    def _forget_busy_before(self, moment: float) -> None:
        while self._busy and self._busy[0][1] <= moment:
            self._busy.popleft()
