"""A model of Triton's kernels gets its KV cache when its largest steps are measured, and is recorded over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serving.engine.model_runner import ModelRunner
from tests.engine.driving import Driver, driven, greedy, random_prompts
from tests.engine.test_sizing import MIB, Memory

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]


def test_model_that_was_sized_generates_as_one_that_was_not(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    sized = ModelRunner(
        folder,
        kv_cache_bytes=None,
        max_step_tokens=2,
        max_graph_rows=1,
        memory=Memory(total_bytes=100 * MIB),
        backend="triton",
        dtype="float32",
        looks_ahead=True,
    )
    plain = ModelRunner(folder, kv_cache_bytes=MIB, dtype="float32")
    assert (sized.backend, sized.num_blocks > plain.num_blocks) == ("triton", True)
    prompts = random_prompts([9], vocab_size=sized.config.vocab_size)
    tokens = Driver(plain).finish(driven(prompts, greedy(3)))
    assert Driver(sized).finish(driven(prompts, greedy(3)), max_chunk=5) == tokens
