"""Keys and values of a step into the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.engine.kv_cache import BLOCK_SIZE


def store(
    keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, *, cached: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Store `keys` and `values` `[num_tokens, num_kv_heads, head_dim]` (heads contiguous, any strides before) at
    `slots` `[num_tokens]` of a layer's `cached` keys and values, laid out as `KVCache` has them.

    As `KVCache.write`, but for a slot below 0 nothing is written. Enqueued on the current stream; asks nothing of the
    host.
    """
    num_tokens, num_kv_heads, head_dim = keys.shape
    cached_keys, cached_values = cached
    _store[(num_tokens,)](
        keys,
        values,
        slots,
        cached_keys,
        cached_values,
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        cached_keys.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        PADDED_HEADS=triton.next_power_of_2(num_kv_heads),
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        BLOCK=BLOCK_SIZE,
        LARGEST=torch.finfo(cached_keys.dtype).max,
        num_warps=4,
    )


@triton.jit
def finite(numbers, LARGEST: tl.constexpr):
    """fp32 `numbers` with NaN as 0 and what lies beyond ±`LARGEST`, the infinite too, as ±`LARGEST`: as
    `torch.nan_to_num` has it for the type of which that is the largest number."""
    numbers = tl.where(numbers != numbers, 0.0, numbers)
    return tl.minimum(tl.maximum(numbers, -LARGEST), LARGEST)


@triton.jit
def slot_offset(slot, head, head_stride, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Where the numbers of `slot` begin in one layer's keys or values, counted in numbers; `head_stride` lie between
    two heads."""
    slot = slot.to(tl.int64)
    return head.to(tl.int64) * head_stride + slot // BLOCK * (BLOCK * HEAD_DIM) + slot % BLOCK * HEAD_DIM


@triton.jit
def _store(
    keys,
    values,
    slots,
    cached_keys,
    cached_values,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    cached_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    heads = tl.arange(0, PADDED_HEADS)[:, None]
    dims = tl.arange(0, PADDED_DIM)[None, :]
    inside = (heads < NUM_KV_HEADS) & (dims < HEAD_DIM)
    key = tl.load(keys + row * key_row_stride + heads * key_head_stride + dims, mask=inside)
    value = tl.load(values + row * value_row_stride + heads * value_head_stride + dims, mask=inside)
    places = slot_offset(slot, heads, cached_head_stride, HEAD_DIM, BLOCK) + dims
    kept = cached_keys.dtype.element_ty
    tl.store(cached_keys + places, finite(key.to(tl.float32), LARGEST).to(kept), mask=inside)
    tl.store(cached_values + places, finite(value.to(tl.float32), LARGEST).to(kept), mask=inside)
