"""The thresholds of top_k and top_p on a GPU, found without sorting a vocabulary."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 2048
_NUM_WARPS = 16
_WAYS = tl.constexpr(8)
"""Parts into which each pass over a row cuts the interval that the threshold lies in."""
_ABOVE_ONE = tl.constexpr(0x3F800001)
"""The bits of the fp32 number after 1, which no weight reaches."""


def find_thresholds(
    weights: torch.Tensor, totals: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """As `sampling.thresholds.thresholds_of`: of each row of `weights`, fp32 `[num_rows, vocab_size]` from 0 to 1 with
    rows contiguous, the weight of the last token kept, fp32 `[num_rows]`. `totals` and `top_p` are fp64, `top_k` int64.

    The sum of all tokens that weigh no less than a number falls as that number grows, and so does their count. Numbers
    that are not negative are ordered as their bits are: so the last bits at which sum and count suffice are found by
    nested intervals, eight at a time, in ten passes over a row. A row is summed by one program, in an order that
    depends on nothing but the size of the vocabulary.
    """
    lowest = torch.empty(len(weights), dtype=torch.float32, device=weights.device)
    if not len(weights):
        return lowest
    assert weights.stride(1) == 1, "rows are contiguous"
    _find_thresholds[(len(weights),)](
        weights,
        totals,
        top_k,
        top_p,
        lowest,
        weights.stride(0),
        weights.shape[1],
        TILE=_TILE,
        num_warps=_NUM_WARPS,
    )
    return lowest


@triton.jit
def _find_thresholds(weights, totals, top_k, top_p, lowest, stride, vocab_size, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    weights += row * stride
    share = tl.load(top_p + row)
    wanted = tl.load(top_k + row).to(tl.int32)
    whole = tl.load(totals + row)
    last = tl.full((), 0, tl.int32)
    if wanted < vocab_size:
        last = _bits_of_rank(weights, wanted, vocab_size, TILE)
        whole = _mass_of_largest(weights, last, wanted, vocab_size, TILE)
    if share < 1.0:
        last = tl.maximum(last, _bits_of_mass(weights, share * whole, vocab_size, TILE))
    tl.store(lowest + row, last.to(tl.float32, bitcast=True))


@triton.jit
def _bits_of_rank(weights, wanted, vocab_size, TILE: tl.constexpr):
    """The largest bits that at least `wanted` tokens reach: those of the weight of that rank."""
    low, high = tl.full((), 0, tl.int32), tl.full((), _ABOVE_ONE, tl.int32)
    while high - low > 1:
        candidates = _cut(low, high)
        numbers = candidates.to(tl.float32, bitcast=True)
        counts = tl.zeros((_WAYS, TILE), dtype=tl.int32)
        for begin in range(0, vocab_size, TILE):
            found = _load(weights, begin, vocab_size, TILE)
            counts += (found[None, :] >= numbers[:, None]).to(tl.int32)
        suffices = tl.sum(counts, axis=1) >= wanted
        low, high = _narrow(low, high, candidates, suffices)
    return low


@triton.jit
def _bits_of_mass(weights, needed, vocab_size, TILE: tl.constexpr):
    """The largest bits such that the tokens which reach them together weigh `needed`; 0 where rounding keeps the sum of
    all below it."""
    low, high = tl.full((), 0, tl.int32), tl.full((), _ABOVE_ONE, tl.int32)
    while high - low > 1:
        candidates = _cut(low, high)
        numbers = candidates.to(tl.float32, bitcast=True)
        masses = tl.zeros((_WAYS, TILE), dtype=tl.float64)
        for begin in range(0, vocab_size, TILE):
            found = _load(weights, begin, vocab_size, TILE)
            masses += tl.where(found[None, :] >= numbers[:, None], found[None, :], 0.0).to(tl.float64)
        suffices = tl.sum(masses, axis=1) >= needed
        low, high = _narrow(low, high, candidates, suffices)
    return low


@triton.jit
def _mass_of_largest(weights, last, wanted, vocab_size, TILE: tl.constexpr):
    """What the `wanted` largest tokens weigh, the smallest of which has the bits `last`; of others like it, no more
    than belong to them are counted."""
    number = last.to(tl.float32, bitcast=True)
    masses = tl.zeros((TILE,), dtype=tl.float64)
    counts = tl.zeros((TILE,), dtype=tl.int32)
    for begin in range(0, vocab_size, TILE):
        found = _load(weights, begin, vocab_size, TILE)
        masses += tl.where(found >= number, found, 0.0).to(tl.float64)
        counts += (found >= number).to(tl.int32)
    return tl.sum(masses) - (tl.sum(counts) - wanted).to(tl.float64) * number.to(tl.float64)


@triton.jit
def _load(weights, begin, vocab_size, TILE: tl.constexpr):
    """A tile of a row; past its end what reaches no number."""
    columns = begin + tl.arange(0, TILE)
    return tl.load(weights + columns, mask=columns < vocab_size, other=-1.0)


@triton.jit
def _cut(low, high):
    """`[_WAYS]` bits from `low` on, that cut the interval up to `high` into parts of one size."""
    places = tl.arange(0, _WAYS)
    return (low + ((high - low).to(tl.int64) * places // _WAYS)).to(tl.int32)


@triton.jit
def _narrow(low, high, candidates, suffices):
    """The interval between the last candidate that suffices and the first that does not: `low` suffices always."""
    suffices = suffices | (candidates <= low)
    return tl.max(tl.where(suffices, candidates, low)), tl.min(tl.where(suffices, high, candidates))
