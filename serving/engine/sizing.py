"""Gives the KV cache of a model on an accelerator its size, when all else has its memory."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from serving.engine.kv_cache import BLOCK_SIZE, MIN_BLOCKS
from serving.engine.largest_step import largest_steps
from serving.engine.memory import DeviceMemory, measure_use, num_blocks_within
from serving.engine.models.model import Model, ResizableModel
from serving.engine.plan import StepPlan

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """What an engine may take of an accelerator: `ratio` of its memory in all, of which the KV cache gets
    `kv_cache_bytes` (None: what is left) beside steps of `max_step_tokens` tokens."""

    ratio: float
    kv_cache_bytes: int | None
    max_step_tokens: int


def size_cache(
    model: Model,
    memory: DeviceMemory,
    terms: MemoryTerms,
    *,
    block_bytes: int,
    max_model_len: int,
    compute: Callable[[Sequence[StepPlan]], object],
) -> None:
    """Compute the largest steps that there may be, and let `model`, whose KV cache has `MIN_BLOCKS` blocks of
    `block_bytes` so far, have as many as the memory then allows.

    `compute` computes plans as steps will be computed. To be called in the memory's `turn`.
    Raises `MemoryShortage` where too little is left.
    """
    assert isinstance(model, ResizableModel), "a model on an accelerator gets its KV cache when its size is known"
    plans = largest_steps(max_step_tokens=terms.max_step_tokens, max_model_len=max_model_len, block_size=BLOCK_SIZE)
    use = measure_use(
        memory,
        cache_bytes=MIN_BLOCKS * block_bytes,
        plans=plans,
        compute=compute,
    )
    num_blocks = num_blocks_within(use, ratio=terms.ratio, block_bytes=block_bytes, wanted_bytes=terms.kv_cache_bytes)
    model.resize(num_blocks)
    _log.info(
        "%s; the KV cache has %s MiB: %s tokens",
        use.in_words(terms.ratio),
        f"{num_blocks * block_bytes >> 20:,}",
        f"{num_blocks * BLOCK_SIZE:,}",
    )
