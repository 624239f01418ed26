"""Paged attention over ragged rows, for accelerators: here that of rows that decode; `attention_chunks` has prompts'.

Both read a context in tiles with an online softmax in fp32 (Dao et al. 2022, "FlashAttention", algorithm 1; Dao 2023,
"FlashAttention-2", section 3.1). The query heads that share a key head are packed into the rows of one matrix product
(Ainslie et al. 2023, "GQA"), so that keys and values are read once for all of them. A long context is split among
programs where there are few rows to compute, and a second kernel merges the parts (Dao et al. 2023, "Flash-Decoding
for long-context inference").

Keys and values are laid out as `KVCache` has them and are always finite. `blocks` is one list of block numbers, int32;
a sequence's begin at its offset there. Nothing is asked of the host and no address depends on a step's contents, so
that launches can be captured in a graph.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from serving.engine.attention.base import LayerAttention
from serving.engine.kernels.gpu.attention_shapes import Shape
from serving.engine.kv_cache import BLOCK_SIZE

_LOG2_E = tl.constexpr(1.4426950408889634)
_PARTS_AT_ONCE = 8


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of queries that are computed each by itself, all int32 `[num_decoding]`: which `rows` they are, the
    `lengths` of their contexts, their own position counted (0: the row is padding, its result is zeros), and the
    `offsets` of their sequences in the list of blocks."""

    rows: torch.Tensor
    lengths: torch.Tensor
    offsets: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Partials:
    """What the parts of split contexts came to, fp32: values' sums `[num_decoding, num_heads, num_parts, head_dim]`,
    and their largest score and sum of weights `[num_decoding, num_heads, num_parts, 2]`, for as many parts as a context
    of the step has at most."""

    sums: torch.Tensor
    softmax: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Splitting:
    """How contexts are split: into at most `max_splits` parts of at least `min_tiles` tiles, by their length alone.
    `num_programs` share the parts of one row and key head; the result does not depend on it. No context of the step has
    more than `most_parts`."""

    max_splits: int
    min_tiles: int
    num_programs: int
    most_parts: int


def attend_rows(
    queries: torch.Tensor,
    attended: torch.Tensor,
    *,
    cached: tuple[torch.Tensor, torch.Tensor],
    decoding: DecodeRows,
    blocks: torch.Tensor,
    how: LayerAttention,
    shape: Shape,
    splitting: Splitting,
    partials: Partials,
) -> None:
    """Let rows of `queries` `[num_tokens, num_heads, head_dim]` (heads contiguous) attend to their contexts, in
    `blocks` of a layer's `cached` keys and values; writes the same rows of `attended`, contiguous and of that shape."""
    num_decoding, num_heads, head_dim = len(decoding.rows), queries.shape[1], queries.shape[2]
    keys, values = cached
    num_kv_heads = len(keys)
    dims = {"HEAD_DIM": head_dim, "PADDED_DIM": triton.next_power_of_2(head_dim), "NUM_HEADS": num_heads}
    split = {"TILE": shape.tile, "WINDOW": how.window or 0, "MAX_SPLITS": splitting.max_splits}
    split["MIN_TILES"] = splitting.min_tiles
    _attend_rows[(num_decoding, num_kv_heads, splitting.num_programs)](
        queries,
        attended,
        keys,
        values,
        decoding.rows,
        decoding.lengths,
        decoding.offsets,
        blocks,
        partials.sums,
        partials.softmax,
        partials.sums.shape[2],
        queries.stride(0),
        keys.stride(0),
        how.scale,
        how.softcap or 0.0,
        **dims,
        **split,
        SHARED=num_heads // num_kv_heads,
        ROWS=shape.rows,
        BLOCK=BLOCK_SIZE,
        HAS_SOFTCAP=how.softcap is not None,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    if splitting.most_parts > 1:
        _merge[(num_decoding, num_heads)](
            attended,
            decoding.rows,
            decoding.lengths,
            partials.sums,
            partials.softmax,
            partials.sums.shape[2],
            **dims,
            **split,
            PADDED_SPLITS=triton.next_power_of_2(splitting.max_splits),
            PARTS_AT_ONCE=_PARTS_AT_ONCE,
            num_warps=2,
        )


@triton.jit
def walk(
    query,
    positions,
    peak,
    weights,
    weighted,
    keys,
    values,
    blocks,
    first_tile,
    end_tile,
    end,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add the tiles from `first_tile` up to `end_tile` to the softmax of `query` `[ROWS, PADDED_DIM]`, whose state is
    its rows' `peak` (in powers of 2), sum of `weights` and `weighted` values.

    Positions from `end` on are not read. Where the tiles are not `MASKED` every row sees all of them.
    """
    dims = tl.arange(0, PADDED_DIM)
    for tile in range(first_tile, end_tile):
        seen = tile * TILE + tl.arange(0, TILE)
        if MASKED:
            block = tl.load(blocks + seen // BLOCK, mask=seen < end, other=0).to(tl.int64)
        else:
            block = tl.load(blocks + seen // BLOCK).to(tl.int64)
        begin = block * (BLOCK * HEAD_DIM) + seen % BLOCK * HEAD_DIM
        key_places = keys + begin[None, :] + dims[:, None]
        value_places = values + begin[:, None] + dims[None, :]
        if MASKED:
            key = tl.load(key_places, mask=(dims[:, None] < HEAD_DIM) & (seen[None, :] < end), other=0.0)
            value = tl.load(value_places, mask=(dims[None, :] < HEAD_DIM) & (seen[:, None] < end), other=0.0)
        elif PADDED_DIM != HEAD_DIM:
            key = tl.load(key_places, mask=dims[:, None] < HEAD_DIM, other=0.0)
            value = tl.load(value_places, mask=dims[None, :] < HEAD_DIM, other=0.0)
        else:
            key = tl.load(key_places)
            value = tl.load(value_places)
        scores = tl.dot(query, key, input_precision="ieee") * scale
        if HAS_SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2x) + 1), which an infinite exponential leaves right.
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * _LOG2_E) / softcap) + 1.0))
        scores *= _LOG2_E
        if MASKED:
            visible = seen[None, :] <= positions[:, None]
            if WINDOW > 0:
                visible &= seen[None, :] > positions[:, None] - WINDOW
            scores = tl.where(visible, scores, -float("inf"))
        risen = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet: any finite peak weighs what it does not see exactly nothing.
        base = tl.where(risen == -float("inf"), 0.0, risen)
        fresh = tl.exp2(scores - base[:, None])
        decay = tl.exp2(peak - base)
        weights = weights * decay + tl.sum(fresh, 1)
        weighted = tl.dot(fresh.to(value.dtype), value, weighted * decay[:, None], input_precision="ieee")
        peak = risen
    return peak, weights, weighted


@triton.jit
def _parts(length, TILE: tl.constexpr, WINDOW: tl.constexpr, MAX_SPLITS: tl.constexpr, MIN_TILES: tl.constexpr):
    """The first tile of a context of `length` that its last row sees, the tile after its last, and the tiles of each
    part of it (the last may have fewer)."""
    first_tile = 0
    if WINDOW > 0:
        first_tile = tl.maximum(length - WINDOW, 0) // TILE
    end_tile = tl.cdiv(length, TILE)
    return first_tile, end_tile, tl.maximum(tl.cdiv(end_tile - first_tile, MAX_SPLITS), MIN_TILES)


@triton.jit(do_not_specialize=["kept_parts"])
def _attend_rows(
    queries,
    attended,
    keys,
    values,
    rows,
    lengths,
    offsets,
    blocks,
    partial_sums,
    partial_softmax,
    kept_parts,
    query_stride,
    head_stride,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    MIN_TILES: tl.constexpr,
):
    """One program for a row, a key head and every so-manieth part of the context."""
    index = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(rows + index).to(tl.int64)
    length = tl.load(lengths + index)
    packed = tl.arange(0, ROWS)
    head = kv_head * SHARED + packed
    dims = tl.arange(0, PADDED_DIM)
    real = (packed < SHARED)[:, None] & (dims < HEAD_DIM)[None, :]
    numbers = head[:, None] * HEAD_DIM + dims[None, :]
    results = attended + row * (NUM_HEADS * HEAD_DIM) + numbers
    if length == 0:
        if tl.program_id(2) == 0:
            tl.store(results, tl.zeros([ROWS, PADDED_DIM], attended.dtype.element_ty), mask=real)
        return
    first_tile, end_tile, part_tiles = _parts(length, TILE, WINDOW, MAX_SPLITS, MIN_TILES)
    num_parts = tl.cdiv(end_tile - first_tile, part_tiles)
    query = tl.load(queries + row * query_stride + numbers, mask=real, other=0.0)
    positions = tl.zeros([ROWS], tl.int32) + (length - 1)
    offset = tl.load(offsets + index)
    for part in range(tl.program_id(2), num_parts, tl.num_programs(2)):
        begin = first_tile + part * part_tiles
        peak, weights, weighted = walk(
            query,
            positions,
            tl.full([ROWS], -float("inf"), tl.float32),
            tl.zeros([ROWS], tl.float32),
            tl.zeros([ROWS, PADDED_DIM], tl.float32),
            keys + kv_head.to(tl.int64) * head_stride,
            values + kv_head.to(tl.int64) * head_stride,
            blocks + offset,
            begin,
            tl.minimum(begin + part_tiles, end_tile),
            length,
            scale,
            softcap,
            HEAD_DIM,
            PADDED_DIM,
            TILE,
            BLOCK,
            WINDOW,
            HAS_SOFTCAP,
            MASKED=True,
        )
        if num_parts == 1:
            tl.store(results, (weighted / weights[:, None]).to(attended.dtype.element_ty), mask=real)
        else:
            place = (index.to(tl.int64) * NUM_HEADS + head) * kept_parts + part
            tl.store(partial_sums + place[:, None] * HEAD_DIM + dims[None, :], weighted, mask=real)
            tl.store(partial_softmax + place * 2, peak, mask=packed < SHARED)
            tl.store(partial_softmax + place * 2 + 1, weights, mask=packed < SHARED)


@triton.jit(do_not_specialize=["kept_parts"])
def _merge(
    attended,
    rows,
    lengths,
    partial_sums,
    partial_softmax,
    kept_parts,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    PARTS_AT_ONCE: tl.constexpr,
):
    """One program a row and query head: its parts in the order of positions, where it has more than one."""
    index = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(lengths + index)
    first_tile, end_tile, part_tiles = _parts(length, TILE, WINDOW, MAX_SPLITS, MIN_TILES)
    num_parts = tl.cdiv(end_tile - first_tile, part_tiles)
    if num_parts <= 1:
        return
    place = (index.to(tl.int64) * NUM_HEADS + head) * kept_parts
    parts = tl.arange(0, PADDED_SPLITS)
    peaks = tl.load(partial_softmax + (place + parts) * 2, mask=parts < num_parts, other=-float("inf"))
    weights = tl.load(partial_softmax + (place + parts) * 2 + 1, mask=parts < num_parts, other=0.0)
    peak = tl.max(peaks, 0)
    total = tl.sum(weights * tl.exp2(peaks - peak), 0)
    dims = tl.arange(0, PADDED_DIM)
    merged = tl.zeros([PADDED_DIM], tl.float32)
    # Several at a time: they are all asked for before the first has come.
    for begin in range(0, num_parts, PARTS_AT_ONCE):
        some = begin + tl.arange(0, PARTS_AT_ONCE)
        inside = (some < num_parts)[:, None] & (dims < HEAD_DIM)[None, :]
        sums = tl.load(partial_sums + (place + some)[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
        some_peaks = tl.load(partial_softmax + (place + some) * 2, mask=some < num_parts, other=-float("inf"))
        merged += tl.sum(sums * tl.exp2(some_peaks - peak)[:, None], 0)
    row = tl.load(rows + index).to(tl.int64)
    result = (merged / total).to(attended.dtype.element_ty)
    tl.store(attended + (row * NUM_HEADS + head) * HEAD_DIM + dims, result, mask=dims < HEAD_DIM)
