"""RMSNorm in one pass over its rows, alone and fused with the addition before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 2048
"""Numbers that a program holds at once where rows are short: heads of a few dimensions are normed many at a time."""
_NUMBERS_A_WARP = 512


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float, *, adds_one: bool = False) -> torch.Tensor:
    """`rows` `[num_rows, size]` or `[num_tokens, num_heads, size]` scaled to unit root mean square, then by `weight`
    `[size]`, or with `adds_one` by 1 + `weight`: a new contiguous tensor.

    Zhang and Sennrich 2019. Computed in fp32; rounded to the rows' dtype before the weight is applied and after, as
    Llama has it, but with `adds_one` only after, as Gemma does. The last dimension of `rows` must be contiguous, the
    others may have any stride, so that a part of a fused row needs no copy.
    """
    normed = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    _launch(rows, None, weight, normed, None, eps=eps, adds_one=adds_one)
    return normed


def add_rms_norm(
    added: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, adds_one: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of `added` and `residual`, both `[num_rows, size]` and contiguous: normed as by `rms_norm`, and as it is.

    The sum is rounded to the rows' dtype first. It takes the place of `residual`, whose memory is written.
    """
    normed = torch.empty_like(added)
    _launch(added, residual, weight, normed, residual, eps=eps, adds_one=adds_one)
    return normed, residual


def _launch(
    rows: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    normed: torch.Tensor,
    total: torch.Tensor | None,
    *,
    eps: float,
    adds_one: bool,
) -> None:
    size = rows.shape[-1]
    num_rows = rows.numel() // size
    if num_rows == 0:
        return
    block = triton.next_power_of_2(size)
    tile_rows = max(1, min(_TILE // block, triton.next_power_of_2(num_rows)))
    num_warps = max(1, min(16, block * tile_rows // _NUMBERS_A_WARP))
    num_heads = rows.shape[1] if rows.dim() == 3 else 1
    _norm_rows[(triton.cdiv(num_rows, tile_rows),)](
        rows,
        residual,
        weight,
        normed,
        total,
        num_rows,
        num_heads,
        rows.stride(0),
        rows.stride(1) if rows.dim() == 3 else 0,
        eps,
        SIZE=size,
        BLOCK=block,
        TILE_ROWS=tile_rows,
        ADDS_ONE=adds_one,
        num_warps=num_warps,
    )


@triton.jit(do_not_specialize=["num_rows", "eps"])
def _norm_rows(
    rows,
    residual,
    weight,
    normed,
    total,
    num_rows,
    num_heads,
    token_stride,
    head_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    ADDS_ONE: tl.constexpr,
):
    """A program norms `TILE_ROWS` whole rows. Row r is head r % `num_heads` of token r // `num_heads`; what is written
    is contiguous. Without a `residual` there is nothing to add and no `total`."""
    index = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (index < num_rows)[:, None] & (columns < SIZE)[None, :]
    starts = (index // num_heads).to(tl.int64) * token_stride + (index % num_heads) * head_stride
    places = index.to(tl.int64)[:, None] * SIZE + columns[None, :]
    values = tl.load(rows + starts[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if residual is not None:
        values += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + places, rounded, mask=mask)
        values = rounded.to(tl.float32)
    scales = tl.rsqrt(tl.sum(values * values, axis=1) / SIZE + eps)
    weights = tl.load(weight + columns, mask=columns < SIZE, other=0.0)
    result = scale_normed(values, scales[:, None], weights[None, :], normed.dtype.element_ty, ADDS_ONE)
    tl.store(normed + places, result, mask=mask)


@triton.jit
def scale_normed(values, scales, weights, DTYPE: tl.constexpr, ADDS_ONE: tl.constexpr):
    """fp32 `values` by `scales` and `weights`, with each family's rounding; in `DTYPE`."""
    if ADDS_ONE:
        scaled = values * scales * (1.0 + weights.to(tl.float32))
    else:
        scaled = (values * scales).to(DTYPE).to(tl.float32) * weights.to(tl.float32)
    return scaled.to(DTYPE)
