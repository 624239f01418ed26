"""How an accelerator's memory is shared out, in numbers and in words."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.kernels.gpu.attention_shapes import decode_shape, max_splits, most_parts
from serving.engine.kv_cache import KVCacheProblem
from serving.engine.largest_step import largest_steps
from serving.engine.memory import MemoryShortage, MemoryUse, is_shortage, measure_use, num_blocks_within
from serving.engine.plan import MOST_SAMPLED_ROWS, StepPlan

MIB, GIB = 2**20, 2**30
BLOCK = 2 * MIB
USE = MemoryUse(
    device="Test GPU (cuda:0)",
    total_bytes=80 * GIB,
    others_bytes=GIB,
    weights_bytes=16 * GIB,
    step_bytes=2 * GIB,
    step_tokens=8192,
    runtime_bytes=512 * MIB,
)
PLANS = largest_steps(max_step_tokens=64, max_model_len=1024, block_size=16)


class Memory:
    """A device with 1,000 MiB, of which tensors come and go as a test says. `used` is by others and by libraries."""

    name = "Test GPU (cuda:0)"
    total_bytes = 1000 * MIB

    def __init__(self, *, held: int, used: int) -> None:
        self.held, self.used, self.cached = held, used, 0
        self._peak = held

    def take(self, num_bytes: int) -> None:
        """Tensors of so many bytes come, and go again; the allocator keeps their memory."""
        if self.used_bytes() + num_bytes > self.total_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much\nof it")
        self._peak = max(self._peak, self.held + num_bytes)
        self.cached = max(self.cached, num_bytes)

    def used_bytes(self) -> int:
        return self.used + self.held + self.cached

    def kept_bytes(self) -> int:
        return self.held + self.cached

    def held_bytes(self) -> int:
        return self.held

    def peak_bytes(self) -> int:
        return self._peak

    def start_peak(self) -> None:
        self._peak = self.held

    def release(self) -> None:
        self.cached = 0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        yield


def test_the_kv_cache_gets_what_is_left_under_the_ratio() -> None:
    left = int(80 * GIB * 0.9) - 16 * GIB - 2 * GIB - 512 * MIB - GIB
    assert USE.left_bytes(0.9) == left
    assert num_blocks_within(USE, ratio=0.9, block_bytes=BLOCK, wanted_bytes=None) == left // BLOCK


def test_the_kv_cache_gets_what_is_asked_for_where_that_is_there() -> None:
    assert num_blocks_within(USE, ratio=0.9, block_bytes=BLOCK, wanted_bytes=8 * GIB) == 8 * GIB // BLOCK
    assert num_blocks_within(USE, ratio=0.9, block_bytes=BLOCK, wanted_bytes=8 * GIB + 1) == 8 * GIB // BLOCK


def test_two_engines_share_a_device_with_less_than_half_each() -> None:
    first = dataclasses.replace(USE, others_bytes=0)
    second = dataclasses.replace(USE, others_bytes=int(80 * GIB * 0.45))
    sizes = [num_blocks_within(use, ratio=0.45, block_bytes=BLOCK, wanted_bytes=None) for use in (first, second)]
    assert sizes[0] == sizes[1] > 0


def test_nobody_takes_what_others_have() -> None:
    crowded = dataclasses.replace(USE, others_bytes=50 * GIB)
    assert crowded.allowed_bytes(0.9) == 30 * GIB
    assert crowded.left_bytes(0.9) == crowded.left_bytes(0.99) == 30 * GIB - 16 * GIB - 2 * GIB - 512 * MIB - GIB


@given(others=st.integers(0, 90), weights=st.integers(0, 90), step=st.integers(0, 20), ratio=st.floats(0.05, 0.99))
def test_whatever_is_given_the_whole_never_exceeds_what_is_allowed(
    others: int, weights: int, step: int, ratio: float
) -> None:
    use = dataclasses.replace(
        USE, others_bytes=min(others, 80) * GIB, weights_bytes=weights * GIB, step_bytes=step * GIB
    )
    try:
        num_blocks = num_blocks_within(use, ratio=ratio, block_bytes=BLOCK, wanted_bytes=None)
    except MemoryShortage:
        assert use.left_bytes(ratio) < 4 * BLOCK
        return
    own = num_blocks * BLOCK + use.weights_bytes + use.step_bytes + use.runtime_bytes + use.graphs_bytes
    assert own <= use.total_bytes * ratio
    assert own + use.others_bytes <= use.total_bytes
    assert own + BLOCK > use.allowed_bytes(ratio)


def test_too_little_is_refused_on_one_line_with_all_numbers() -> None:
    with pytest.raises(MemoryShortage) as raised:
        num_blocks_within(USE, ratio=0.25, block_bytes=BLOCK, wanted_bytes=4 * GIB)
    assert str(raised.value) == (
        "Test GPU (cuda:0) has 81,920 MiB, of which 1,024 are in use by others; gpu_memory_ratio 0.25 leaves this "
        "engine 20,480, of which weights take 16,384, a step of 8,192 tokens 2,048, libraries 512 and graphs 1,024: "
        "512 MiB are left for the KV cache, and kv_cache_mb asks for 4,096; lower max_step_tokens, take weights of "
        "fewer bits, raise gpu_memory_ratio, or leave the device to fewer processes"
    )


def test_less_than_nothing_is_told_as_what_is_missing() -> None:
    with pytest.raises(MemoryShortage) as raised:
        num_blocks_within(USE, ratio=0.2, block_bytes=BLOCK, wanted_bytes=None)
    assert ": 3,584 MiB too many are used, none is left for the KV cache, and it needs 8 at least (4 blocks of" in str(
        raised.value
    )


def test_what_a_step_takes_is_measured_and_what_no_tensor_holds() -> None:
    memory = Memory(held=300 * MIB, used=90 * MIB)
    memory.cached = 60 * MIB  # what loading left behind
    told: list[Sequence[StepPlan]] = []

    def compute(plans: Sequence[StepPlan]) -> None:
        told.append(plans)
        memory.take(200 * MIB)
        memory.take(50 * MIB)
        memory.used += 40 * MIB  # a library's own

    use = measure_use(memory, cache_bytes=8 * MIB, plans=PLANS, compute=compute)
    assert told == [PLANS]
    assert use == MemoryUse(
        device="Test GPU (cuda:0)",
        total_bytes=1000 * MIB,
        others_bytes=90 * MIB,
        weights_bytes=292 * MIB,
        step_bytes=200 * MIB,
        step_tokens=64,
        runtime_bytes=40 * MIB,
    )


def failing(error: Exception) -> Callable[[Sequence[StepPlan]], None]:
    def compute(_plans: Sequence[StepPlan]) -> None:
        raise error

    return compute


def test_a_step_that_does_not_fit_is_refused_with_the_numbers() -> None:
    memory = Memory(held=900 * MIB, used=40 * MIB)
    with pytest.raises(MemoryShortage) as raised:
        measure_use(memory, cache_bytes=0, plans=PLANS, compute=lambda _: memory.take(200 * MIB))
    assert str(raised.value).startswith(
        "a step of 64 tokens does not fit: Test GPU (cuda:0) has 1,000 MiB, of which 40 are in use by others, and "
        "weights take 900; lower max_step_tokens"
    )


def test_any_other_fault_of_a_step_keeps_its_kind() -> None:
    with pytest.raises(ZeroDivisionError):
        measure_use(Memory(held=1, used=1), cache_bytes=0, plans=PLANS, compute=failing(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("anything"), True),
        (RuntimeError("CUDA error: out of memory\nmore"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (KVCacheProblem("no memory for a KV cache of 9 bytes"), True),
        (KVCacheProblem("a KV cache of 9 bytes holds 0 blocks"), False),
        (RuntimeError("shapes do not match\nout of memory"), False),
    ],
)
def test_a_shortage_is_known_by_its_kind_or_its_first_line(error: Exception, is_one: bool) -> None:
    assert is_shortage(error) is is_one


@pytest.mark.parametrize(
    ("max_step_tokens", "max_model_len"),
    [(8192, 131_072), (8192, 2048), (8192, 1000), (16, 4096), (1025, 17), (64, 64)],
)
def test_the_largest_steps_are_as_large_as_any_may_be(max_step_tokens: int, max_model_len: int) -> None:
    prompts, decodes = largest_steps(max_step_tokens=max_step_tokens, max_model_len=max_model_len, block_size=16)
    for plan in (prompts, decodes):
        assert plan.num_tokens == sum(len(chunk.token_ids) for chunk in plan.chunks) == max_step_tokens
        for chunk in plan.chunks:
            assert 0 < chunk.end <= max_model_len
            assert len(chunk.block_table) * 16 >= chunk.end
            assert set(chunk.block_table) == {0}
    assert all(chunk.embeds for chunk in prompts.chunks)
    assert sum(chunk.samples for chunk in decodes.chunks) == min(max_step_tokens, MOST_SAMPLED_ROWS)
    assert len({chunk.key for chunk in decodes.chunks}) == len(decodes.chunks)


@pytest.mark.parametrize("num_kv_heads", [1, 3, 8, 32])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_no_context_is_split_into_more_parts_than_that_of_the_largest_step(head_dim: int, num_kv_heads: int) -> None:
    """Attention has memory in every row for as many parts as the row with most has."""
    _, decodes = largest_steps(max_step_tokens=64, max_model_len=131_072, block_size=16)
    shape = decode_shape(head_dim=head_dim, num_shared=4, dtype=torch.bfloat16, shared_memory=227 << 10)
    num_splits = max_splits(num_processors=132, num_kv_heads=num_kv_heads)

    def parts(lengths: Iterable[int]) -> int:
        return most_parts(np.fromiter(lengths, dtype=np.int32), window=None, tile=shape.tile, num_splits=num_splits)

    assert parts(chunk.end for chunk in decodes.chunks) == parts(range(1, 131_073)) == num_splits
