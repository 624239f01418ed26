"""An engine's steps as they are published: who was in each batch, what was computed, and where the time went.

A batch names its sequences once, and its rows refer to them by place: so each batch can be read by itself, whichever
others were lost. Steps are numbered without a hole from the engine's start: a hole between two rows is what was lost.
"""

from __future__ import annotations

from typing import Final

import msgspec

from serving.contracts.ids import EngineId
from serving.contracts.messages import SequenceKey

SCHEMA_VERSION = 1

KEPT_STEPS: Final = 1200
"""The latest steps of an engine that stay in Redis."""

SHOWN_STEPS: Final = 600
"""The latest of them that a page is shown as it opens."""

LIFE_SECONDS: Final = 900
"""What an engine published goes when it has published nothing for so long."""

MAX_WAITING = 32
"""Waiting sequences that a row names, in the order in which they would be served."""

PREFILL, DECODE, PREEMPTED = 0, 1, 2
"""What a row's `others` were there for."""


class StepRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step. `unix_seconds` is its begin; the parts of its time are in milliseconds and leave a little of
    `total_ms` unnamed.

    Sequences are places in the batch's list. `decoding` computed one token each; `others` are triples of place, kind
    (`PREFILL`, `DECODE`, `PREEMPTED`) and tokens. `ended` left for good with this step or since the one before, and
    `waiting` are the first of those that wait. `num_padded_tokens` is what a rectangular batch would have computed for
    nothing. `failed` steps computed nothing that anyone received. `num_context_tokens` are the positions that decoding
    rows attended to, `num_prefill_positions` those of prefill tokens, each summed; an older engine tells neither (0).
    """

    step: int
    unix_seconds: float
    total_ms: float
    schedule_ms: float
    prepare_ms: float
    forward_ms: float
    sample_ms: float
    update_ms: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padded_tokens: int
    max_batch_tokens: int
    num_running: int
    num_waiting: int
    kv_blocks_used: int
    tunables_version: int
    is_static: bool
    failed: bool
    decoding: list[int]
    others: list[int]
    ended: list[int]
    waiting: list[int]
    num_context_tokens: int = 0
    num_prefill_positions: int = 0


ROW_FIELDS: tuple[str, ...] = StepRow.__struct_fields__


class StepBatch(msgspec.Struct, frozen=True):
    """Steps of one engine, the oldest first. `num_dropped` counts those that were never published, since its start."""

    engine_id: EngineId
    sequences: list[SequenceKey]
    rows: list[StepRow]
    num_dropped: int
    schema_version: int = SCHEMA_VERSION


encode_steps = msgspec.msgpack.Encoder().encode
decode_steps = msgspec.msgpack.Decoder(StepBatch).decode
