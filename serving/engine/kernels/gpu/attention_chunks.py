"""Paged attention of prompts' chunks; see `attention` for what it has in common with that of rows that decode."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.engine.attention.base import LayerAttention
from serving.engine.kernels.gpu.attention import walk
from serving.engine.kernels.gpu.attention_shapes import Shape
from serving.engine.kv_cache import BLOCK_SIZE


def attend_chunks(
    queries: torch.Tensor,
    attended: torch.Tensor,
    *,
    cached: tuple[torch.Tensor, torch.Tensor],
    tiles: torch.Tensor,
    blocks: torch.Tensor,
    how: LayerAttention,
    shape: Shape,
) -> None:
    """As `attention.attend_rows` for prompts' chunks, cut into `tiles`: int32 `[num_tiles, 4]`, each its first row, the
    number of its rows (at most `shape.rows` over the query heads of a key head), the position of the first, and its
    sequence's offset in `blocks`."""
    num_heads, head_dim = queries.shape[1:]
    keys, values = cached
    num_kv_heads = len(keys)
    _attend_chunks[(len(tiles), num_kv_heads)](
        queries,
        attended,
        keys,
        values,
        tiles,
        blocks,
        queries.stride(0),
        keys.stride(0),
        how.scale,
        how.softcap or 0.0,
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        NUM_HEADS=num_heads,
        SHARED=num_heads // num_kv_heads,
        ROWS=shape.rows,
        TILE=shape.tile,
        BLOCK=BLOCK_SIZE,
        WINDOW=how.window or 0,
        HAS_SOFTCAP=how.softcap is not None,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )


@triton.jit
def _attend_chunks(
    queries,
    attended,
    keys,
    values,
    tiles,
    blocks,
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
):
    """One program for a tile of a chunk's rows and a key head.

    Tiles of the context begin at the same positions and are added in the same order for every row, whichever it is
    packed with.
    """
    description = tiles + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    first_row = tl.load(description).to(tl.int64)
    num_rows = tl.load(description + 1)
    start = tl.load(description + 2)
    offset = tl.load(description + 3)
    packed = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    ahead = packed // SHARED
    real = (ahead < num_rows)[:, None] & (dims < HEAD_DIM)[None, :]
    head = kv_head * SHARED + packed % SHARED
    numbers = head[:, None] * HEAD_DIM + dims[None, :]
    row = first_row + ahead
    query = tl.load(queries + row[:, None] * query_stride + numbers, mask=real, other=0.0)
    positions = start + ahead
    end = start + num_rows
    first_tile = 0
    end_tile = tl.cdiv(end, TILE)
    if WINDOW > 0:
        first_tile = tl.maximum(start - WINDOW + 1, 0) // TILE
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    blocks += offset
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    weights = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    # Most tiles are seen wholly by every row, and need no mask: those before a row, and behind every row's window.
    whole_tile = first_tile
    if WINDOW > 0:
        whole_tile = tl.minimum(tl.maximum(end - 1 - WINDOW + TILE, 0) // TILE, end_tile)
        peak, weights, weighted = walk(
            query,
            positions,
            peak,
            weights,
            weighted,
            keys,
            values,
            blocks,
            first_tile,
            whole_tile,
            end,
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
    partial_tile = tl.maximum((start + 1) // TILE, whole_tile)
    peak, weights, weighted = walk(
        query,
        positions,
        peak,
        weights,
        weighted,
        keys,
        values,
        blocks,
        whole_tile,
        partial_tile,
        end,
        scale,
        softcap,
        HEAD_DIM,
        PADDED_DIM,
        TILE,
        BLOCK,
        WINDOW,
        HAS_SOFTCAP,
        MASKED=False,
    )
    peak, weights, weighted = walk(
        query,
        positions,
        peak,
        weights,
        weighted,
        keys,
        values,
        blocks,
        partial_tile,
        end_tile,
        end,
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
    result = (weighted / weights[:, None]).to(attended.dtype.element_ty)
    tl.store(attended + row[:, None] * (NUM_HEADS * HEAD_DIM) + numbers, result, mask=real)
