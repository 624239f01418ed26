"""How little may still be kept: the thresholds of top_k and top_p, found without sorting a vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.sampling.blocks import is_on_cpu, strided_maxima

_NUMS_OF_BLOCKS = (1024, 8192)
"""Blocks of tokens whose maxima are looked at first: few for what most ask for, more where these do not suffice."""
_WIDE = 4096
"""Rows with more candidates than this are sorted apart, so that the others are not padded to their width."""
_BUCKET_BITS = 14
"""Upper bits of a weight, which is at most 1 and has no sign: an exponent and seven bits of its fraction."""

_Find = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def thresholds_of(
    weights: torch.Tensor, totals: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Thresholds of top_k and top_p together, `[num_rows]`; `totals` are the rows' sums."""
    limited = top_k < weights.shape[-1]
    if not is_on_cpu(weights):
        find = _kernel() if weights.device.type == "cuda" else None
        if find is not None:
            return find(weights, totals, top_k, top_p)
        descending = weights.sort(dim=-1, descending=True).values
        return _nucleus(descending, totals, top_k, top_p, limited=limited)
    values = weights.numpy()
    bounds = _lower_bounds(weights, totals, top_k, top_p)
    places = np.flatnonzero(values >= bounds.numpy()[:, None])
    rows = places // values.shape[-1]
    counts = np.bincount(rows, minlength=len(values))
    candidates = values.reshape(-1)[places]
    lowest = torch.empty_like(bounds)
    is_wide = counts > _WIDE
    for is_in_group in (~is_wide, is_wide & limited.numpy()):
        if is_in_group.any():
            group = np.flatnonzero(is_in_group)
            descending = _descending(candidates[is_in_group[rows]], counts[group])
            lowest[group] = _nucleus(descending, totals[group], top_k[group], top_p[group], limited=limited[group])
    if (is_wide & ~limited.numpy()).any():
        group = np.flatnonzero(is_wide & ~limited.numpy())
        lowest[group] = torch.from_numpy(_wide_nucleus(values[group], (totals * top_p).numpy()[group]))
    return lowest


@functools.cache
def _kernel() -> _Find | None:
    """The kernel that finds them on a GPU; None where Triton is missing, and whole rows are sorted."""
    try:
        from serving.engine.kernels.gpu.thresholds import find_thresholds
    except ImportError:
        return None
    return find_thresholds


def _lower_bounds(
    weights: torch.Tensor, totals: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """For each row a weight that its threshold is not below, `[num_rows]`: what is smaller need not be sorted.

    The largest of each block are so many different tokens: with top_k, its threshold is not below the one of that
    rank; with top_p alone, not below the one down to which they have the wanted share. Where they do not suffice, all
    tokens below the bound are together too light to be needed, by half, which leaves room for rounding.
    """
    vocab_size = weights.shape[-1]
    limited = top_k < vocab_size
    bounds = ((1.0 - top_p) * totals * (0.5 / vocab_size)).to(torch.float32).masked_fill_(limited, 0.0)
    missing = torch.arange(len(weights))
    for num_blocks in _NUMS_OF_BLOCKS:
        if num_blocks * 2 > vocab_size or not len(missing):
            break
        maxima = strided_maxima(weights, num_blocks)[missing].neg_().numpy()
        maxima.sort(axis=-1)
        descending = torch.from_numpy(np.negative(maxima, out=maxima))
        sums = descending.cumsum(dim=-1, dtype=torch.float64)
        ranks = torch.searchsorted(sums, (totals * top_p)[missing, None]).squeeze(-1)
        ranks = torch.where(limited[missing], top_k[missing] - 1, ranks)
        reached = ranks < num_blocks
        found = descending[reached].gather(-1, ranks[reached, None]).squeeze(-1)
        bounds[missing[reached]] = torch.maximum(bounds[missing[reached]], found)
        missing = missing[~reached]
    return bounds


def _descending(values: npt.NDArray[np.float32], counts: npt.NDArray[np.int64]) -> torch.Tensor:
    """Rows of `values` (`counts` tell how many belong to each) in descending order, `[num_rows, max(counts)]`, filled
    up with zeros."""
    padded = np.zeros((len(counts), max(1, int(counts.max()))), dtype=np.float32)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = -values
    padded.sort(axis=-1)
    return torch.from_numpy(np.negative(padded, out=padded))


def _nucleus(
    descending: torch.Tensor,
    totals: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    *,
    limited: torch.Tensor,
) -> torch.Tensor:
    """The weight of the last token kept, `[num_rows]`.

    `descending` `[num_rows, num_candidates]` holds all tokens that may be kept. top_p (Holtzman et al. 2020, "The
    Curious Case of Neural Text Degeneration") keeps the fewest tokens whose sum reaches that share of what top_k left
    (of `totals`, where a row is not `limited` by top_k): at least one. Where rounding keeps the sum below it, all are
    kept.
    """
    sums = descending.cumsum(dim=-1, dtype=torch.float64)
    last_of_top_k = (top_k - 1).clamp(max=descending.shape[-1] - 1)[:, None]
    whole = torch.where(limited[:, None], sums.gather(-1, last_of_top_k), totals[:, None])
    needed = whole * top_p[:, None]
    last = torch.minimum(torch.searchsorted(sums, needed), last_of_top_k)
    last = torch.where((top_p >= 1.0)[:, None], last_of_top_k, last)
    lowest = descending.gather(-1, last).squeeze(-1)
    unreached = (sums[:, -1:] < needed).squeeze(-1) & (top_p < 1.0)
    return lowest.masked_fill_(unreached, 0.0)


def _wide_nucleus(weights: npt.NDArray[np.float32], needed: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """As `_nucleus` for top_p alone, where nearly all of `weights` `[num_rows, vocab_size]` are candidates: the sums of
    buckets of nearly equal weights tell which one bucket must be sorted."""
    keys = weights.view(np.int32) >> 16
    offsets = np.arange(len(weights))[:, None] << _BUCKET_BITS
    masses = np.bincount((keys + offsets).reshape(-1), weights.reshape(-1), len(weights) << _BUCKET_BITS)
    # From the heaviest bucket down.
    sums = masses.reshape(len(weights), -1)[:, ::-1].cumsum(axis=-1)
    places = np.minimum((sums < needed[:, None]).sum(axis=-1), sums.shape[-1] - 1)
    rows = np.arange(len(weights))
    before = np.where(places > 0, sums[rows, places - 1], 0.0)
    is_candidate = keys == (sums.shape[-1] - 1 - places)[:, None]
    descending = _descending(weights[is_candidate], np.count_nonzero(is_candidate, axis=-1)).numpy()
    within = before[:, None] + descending.cumsum(axis=-1, dtype=np.float64)
    last = (within < needed[:, None]).sum(axis=-1)
    lowest: npt.NDArray[np.float32] = np.append(descending, np.zeros((len(rows), 1), np.float32), axis=-1)[rows, last]
    return lowest
