"""From the fused product of queries, keys and values to attention: norms, rotation and the KV cache in one pass."""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from serving.engine.kernels.gpu.norms import scale_normed
from serving.engine.kernels.gpu.store import finite, slot_offset
from serving.engine.kv_cache import BLOCK_SIZE

_TILE = 1024
"""Numbers of heads that a program holds at once, about."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of each query and key head by these weights `[head_dim]`; see `norms.rms_norm` for `adds_one`."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float
    adds_one: bool = False


def rotate_and_store(
    fused: torch.Tensor,
    *,
    num_heads: int,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    norm: HeadNorm | None = None,
) -> torch.Tensor:
    """Norm and rotate the queries and keys of `fused` `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, and
    store keys and values at `slots` `[num_tokens]` (integers on the device) of a layer's cache: `keys` and `values`,
    each `[num_kv_heads, num_blocks, BLOCK_SIZE * head_dim]`. Returns the queries `[num_tokens, num_heads, head_dim]`.

    `cosines` and `sines` `[num_tokens, rotary_dim / 2]` are those of the tokens' positions (Su et al. 2021, "RoFormer",
    section 3.4.2): dimension i of the first `rotary_dim` is rotated with i + rotary_dim / 2, the rest stays. Norm,
    products and their sum are each rounded to the dtype of `fused`, as `rope.rotate` does. Numbers that are not finite
    are stored as `KVCache.write` stores them. A row whose slot is negative stores nothing.
    """
    num_tokens = len(fused)
    num_kv_heads, head_dim = len(keys), keys.shape[2] // BLOCK_SIZE
    if fused.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim:
        raise ValueError(
            f"fused rows have {fused.shape[1]} numbers, not those of {num_heads} query heads and {num_kv_heads} key "
            f"and value heads of {head_dim} dimensions"
        )
    queries = torch.empty(num_tokens, num_heads, head_dim, dtype=fused.dtype, device=fused.device)
    if num_tokens == 0:
        return queries
    half = cosines.shape[1]
    width = triton.next_power_of_2(head_dim)
    heads_at_once = max(1, min(_TILE // width, triton.next_power_of_2(num_kv_heads)))
    num_groups = triton.cdiv(num_heads, heads_at_once) + triton.cdiv(num_kv_heads, heads_at_once)
    _rotate_and_store[(num_tokens, num_groups)](
        fused,
        cosines,
        sines,
        slots,
        norm.query if norm else None,
        norm.key if norm else None,
        queries,
        keys,
        values,
        fused.stride(0),
        cosines.stride(0),
        keys.stride(0),
        norm.eps if norm else 0.0,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        HALF_BLOCK=triton.next_power_of_2(half),
        REST=head_dim - 2 * half,
        REST_BLOCK=triton.next_power_of_2(max(1, head_dim - 2 * half)),
        WIDTH=width,
        HEADS=heads_at_once,
        BLOCK=BLOCK_SIZE,
        LARGEST=torch.finfo(keys.dtype).max,
        ADDS_ONE=norm is not None and norm.adds_one,
        num_warps=max(1, min(4, heads_at_once * width // 256)),
    )
    return queries


@triton.jit(do_not_specialize=["eps"])
def _rotate_and_store(
    fused,
    cosines,
    sines,
    slots,
    query_norm,
    key_norm,
    queries,
    keys,
    values,
    token_stride,
    angle_stride,
    head_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    ADDS_ONE: tl.constexpr,
):
    """A program has one token and `HEADS` query heads, or as many key heads with their values."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    row = fused + token * token_stride
    columns = tl.arange(0, HALF_BLOCK)
    cosine = tl.load(cosines + token * angle_stride + columns, mask=columns < HALF, other=0.0).to(tl.float32)
    sine = tl.load(sines + token * angle_stride + columns, mask=columns < HALF, other=0.0).to(tl.float32)
    query_groups: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    if group < query_groups:
        _turn_queries(
            row, group * HEADS + tl.arange(0, HEADS), token, query_norm, cosine, sine, queries, eps,
            NUM_HEADS, HEAD_DIM, HALF, HALF_BLOCK, REST, REST_BLOCK, ADDS_ONE,
        )  # fmt: skip
    else:
        # A row that only fills a batch up is stored nowhere.
        slot = tl.load(slots + token)
        if slot >= 0:
            heads = (group - query_groups) * HEADS + tl.arange(0, HEADS)
            offsets = slot_offset(slot, heads, head_stride, HEAD_DIM, BLOCK)
            start = row + NUM_HEADS * HEAD_DIM
            _turn_keys(
                start, heads, offsets, key_norm, cosine, sine, keys, eps,
                NUM_KV_HEADS, HEAD_DIM, HALF, HALF_BLOCK, REST, REST_BLOCK, LARGEST, ADDS_ONE,
            )  # fmt: skip
            _copy_values(
                start + NUM_KV_HEADS * HEAD_DIM, heads, offsets, values, NUM_KV_HEADS, HEAD_DIM, WIDTH, LARGEST
            )


@triton.jit
def _turn_queries(
    start,
    heads,
    token,
    norm,
    cosine,
    sine,
    queries,
    eps,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    ADDS_ONE: tl.constexpr,
):
    known = heads < NUM_HEADS
    first, second, rest = _turned(
        start, heads, known, norm, cosine, sine, eps, HEAD_DIM, HALF, HALF_BLOCK, REST, REST_BLOCK, ADDS_ONE
    )
    places = queries + (token * NUM_HEADS + heads) * HEAD_DIM
    _write(places, known, first, second, rest, HALF, HALF_BLOCK, REST, REST_BLOCK)


@triton.jit
def _turn_keys(
    start,
    heads,
    offsets,
    norm,
    cosine,
    sine,
    keys,
    eps,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    ADDS_ONE: tl.constexpr,
):
    known = heads < NUM_KV_HEADS
    first, second, rest = _turned(
        start, heads, known, norm, cosine, sine, eps, HEAD_DIM, HALF, HALF_BLOCK, REST, REST_BLOCK, ADDS_ONE
    )
    first, second, rest = finite(first, LARGEST), finite(second, LARGEST), finite(rest, LARGEST)
    _write(keys + offsets, known, first, second, rest, HALF, HALF_BLOCK, REST, REST_BLOCK)


@triton.jit
def _copy_values(
    start,
    heads,
    offsets,
    values,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    LARGEST: tl.constexpr,
):
    columns = tl.arange(0, WIDTH)
    mask = (heads < NUM_KV_HEADS)[:, None] & (columns < HEAD_DIM)[None, :]
    fresh = tl.load(start + heads[:, None] * HEAD_DIM + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(values + offsets[:, None] + columns[None, :], finite(fresh, LARGEST), mask=mask)


@triton.jit
def _turned(
    start,
    heads,
    known,
    norm,
    cosine,
    sine,
    eps,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    ADDS_ONE: tl.constexpr,
):
    """`heads` `[HEADS]` from `start`, normed where there is a `norm`, and rotated: the two halves that are rotated,
    `[HEADS, HALF_BLOCK]`, and the rest `[HEADS, REST_BLOCK]`, all fp32."""
    dtype: tl.constexpr = start.dtype.element_ty
    columns = tl.arange(0, HALF_BLOCK)
    inside = columns < HALF
    mask = known[:, None] & inside[None, :]
    places = start + heads[:, None] * HEAD_DIM
    first = tl.load(places + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(places + HALF + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    after = tl.arange(0, REST_BLOCK)
    if REST > 0:
        rest_mask = known[:, None] & (after < REST)[None, :]
        rest = tl.load(places + 2 * HALF + after[None, :], mask=rest_mask, other=0.0).to(tl.float32)
    else:
        rest = tl.zeros([heads.shape[0], REST_BLOCK], tl.float32)
    if norm is not None:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1) + tl.sum(rest * rest, axis=1)
        scales = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first_weight = tl.load(norm + columns, mask=inside, other=0.0)[None, :]
        second_weight = tl.load(norm + HALF + columns, mask=inside, other=0.0)[None, :]
        first = scale_normed(first, scales, first_weight, dtype, ADDS_ONE).to(tl.float32)
        second = scale_normed(second, scales, second_weight, dtype, ADDS_ONE).to(tl.float32)
        if REST > 0:
            rest_weight = tl.load(norm + 2 * HALF + after, mask=after < REST, other=0.0)[None, :]
            rest = scale_normed(rest, scales, rest_weight, dtype, ADDS_ONE).to(tl.float32)
    cosine, sine = cosine[None, :], sine[None, :]
    turned_first = _rounded(first * cosine, dtype) - _rounded(second * sine, dtype)
    turned_second = _rounded(second * cosine, dtype) + _rounded(first * sine, dtype)
    return _rounded(turned_first, dtype), _rounded(turned_second, dtype), rest


@triton.jit
def _write(
    places,
    known,
    first,
    second,
    rest,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
):
    """The three parts of each head, in their order, from its place in `places` `[HEADS]`."""
    columns = tl.arange(0, HALF_BLOCK)
    mask = known[:, None] & (columns < HALF)[None, :]
    tl.store(places[:, None] + columns[None, :], first, mask=mask)
    tl.store(places[:, None] + HALF + columns[None, :], second, mask=mask)
    if REST > 0:
        after = tl.arange(0, REST_BLOCK)
        rest_mask = known[:, None] & (after < REST)[None, :]
        tl.store(places[:, None] + 2 * HALF + after[None, :], rest, mask=rest_mask)


@triton.jit
def _rounded(numbers, DTYPE: tl.constexpr):
    return numbers.to(DTYPE).to(tl.float32)
