"""Draws from what temperature, top_k, top_p and min_p leave of each row's distribution."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from serving.contracts.sampling import SamplingParams
from serving.engine.random_numbers import uniforms
from serving.engine.sampling.blocks import block_sums, is_on_cpu, width_of_block
from serving.engine.sampling.thresholds import thresholds_of
from serving.engine.transfers import upload

_LOWEST_TEMPERATURE = 1e-6
"""Below this a distribution in fp32 has one token left anyway; dividing by less would overflow."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draws:
    """The rows of a batch that draw (`indices`; all of them where `is_all`), and how: one entry of the other arrays a
    drawing row. `sorting` are those, among the drawing rows, that top_k or top_p filters, and `top_k` and `top_p` have
    an entry for each of these alone. Tensors are on the device; `rows` are there what `indices` are here."""

    indices: list[int]
    is_all: bool
    seeds: npt.NDArray[np.uint64]
    rows: torch.Tensor
    temperatures: torch.Tensor
    min_p: torch.Tensor
    sorting: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    filters: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams], *, vocab_size: int, device: torch.device) -> Draws | None:
        """The draws of a batch with these parameters; None where every row is greedy."""
        indices = [index for index, row in enumerate(params) if not row.greedy]
        if not indices:
            return None
        drawing = [params[index] for index in indices]
        top_k = [row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in drawing]
        sorting = [index for index, row in enumerate(drawing) if top_k[index] < vocab_size or row.top_p < 1.0]
        temperatures = [max(row.temperature, _LOWEST_TEMPERATURE) for row in drawing]
        rows_there, temperatures_there, min_p, sorting_there, top_k_there, top_p = upload(
            np.asarray(indices, dtype=np.int64),
            np.asarray(temperatures, dtype=np.float32)[:, None],
            np.asarray([row.min_p for row in drawing], dtype=np.float32),
            np.asarray(sorting, dtype=np.int64),
            np.asarray([top_k[index] for index in sorting], dtype=np.int64),
            np.asarray([drawing[index].top_p for index in sorting], dtype=np.float64),
            device=device,
        )
        return cls(
            indices=indices,
            is_all=len(indices) == len(params),
            seeds=np.asarray([row.seed for row in drawing], dtype=np.uint64),
            rows=rows_there,
            temperatures=temperatures_there,
            min_p=min_p,
            sorting=sorting_there,
            top_k=top_k_there,
            top_p=top_p,
            filters=bool(sorting) or any(row.min_p > 0.0 for row in drawing),
        )

    def draw(
        self, logits: torch.Tensor, highest: torch.Tensor, *, choices: Sequence[int], indices: Sequence[int]
    ) -> torch.Tensor:
        """Token ids `[num_drawing_rows]` from `logits` `[num_rows, vocab_size]`, which are used up.

        `highest` `[num_rows]` are the rows' largest logits, `choices` and `indices` say of each drawing row what its
        draw is for. A row that is not finite yields any token.
        """
        if self.is_all:
            weights = _exponentiate(logits, highest, self.temperatures)
        else:
            weights = _exponentiate(logits[self.rows], highest[self.rows], self.temperatures)
        sums = block_sums(weights)
        if self.filters:
            _drop_below(weights, self._thresholds(weights, sums))
            sums = block_sums(weights)
        (numbers,) = upload(uniforms(self.seeds, choices, indices), device=logits.device)
        return invert(weights, sums, numbers)

    def _thresholds(self, weights: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        """The lowest weight that each row keeps, `[num_drawing_rows]`; `sums` are those of blocks."""
        lowest = self.min_p.clone()  # the most probable token weighs 1
        if len(self.sorting):
            totals = sums.sum(dim=-1, dtype=torch.float64)[self.sorting]
            sorted_rows = weights if len(self.sorting) == len(lowest) else weights[self.sorting]
            found = thresholds_of(sorted_rows, totals, self.top_k, self.top_p)
            lowest[self.sorting] = torch.maximum(lowest[self.sorting], found)
        return lowest


def _exponentiate(logits: torch.Tensor, highest: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """`logits` made into weights, proportional to probabilities, in place; a row's largest is 1.

    So no temperature overflows. On a CPU by NumPy, which does not slow down where weights are all but 0.
    """
    logits.sub_(highest[:, None]).div_(temperatures)
    if not is_on_cpu(logits):
        return logits.exp_()
    np.exp(logits.numpy(), out=logits.numpy())
    return logits


def _drop_below(weights: torch.Tensor, lowest: torch.Tensor) -> None:
    """Make zeros of what is below its row's `lowest` `[num_rows]`. On a CPU by NumPy, which is faster."""
    if not is_on_cpu(weights):
        weights.masked_fill_(weights < lowest[:, None], 0.0)
        return
    values = weights.numpy()
    np.multiply(values, values >= lowest.numpy()[:, None], out=values)


def invert(weights: torch.Tensor, sums_of_blocks: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The token ids `[num_rows]` at which the cumulative sums of `weights` `[num_rows, vocab_size]`, which need not add
    up to 1, pass `numbers`, fp64 of [0, 1). A token without weight is never chosen.

    The sums are taken in two levels, so that one block of tokens is summed token by token, and not the vocabulary.
    """
    sums = sums_of_blocks.cumsum(dim=-1, dtype=torch.float64)
    targets = numbers[:, None] * sums[:, -1:]
    blocks = _first_above(sums, targets)
    before = torch.where(blocks > 0, sums.gather(-1, (blocks - 1).clamp(min=0)), 0.0)
    width = width_of_block(weights.shape[-1])
    columns = blocks * width + torch.arange(width, device=weights.device)
    inside = columns < weights.shape[-1]
    picked = weights.gather(-1, columns.clamp(max=weights.shape[-1] - 1)).masked_fill_(~inside, 0.0)
    within = picked.cumsum(dim=-1, dtype=torch.float64)
    # In a row that is not finite it may be any place, even one past the last token.
    places = blocks * width + _first_above(within, targets - before)
    return places.clamp_(max=weights.shape[-1] - 1).squeeze(-1)


def _first_above(sums: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Where ascending `sums` first exceed `targets` `[num_rows, 1]`; rounding may lift a target to the last sum or
    above, which means the last place where the sums rise."""
    totals = sums[:, -1:]
    targets = torch.minimum(targets, torch.nextafter(totals, torch.zeros_like(totals))).clamp_(min=0.0)
    return torch.searchsorted(sums, targets, right=True).clamp_(max=sums.shape[-1] - 1)
