"""Feed-forward parts as plain tensor code: gated linear units, and mixtures of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812

from serving.engine.models.weights import DenseWeights, SparseWeights, StackedExperts

Gate = Callable[[torch.Tensor], torch.Tensor]
"""As `Operations.gate`."""


def feed_forward(rows: torch.Tensor, weights: DenseWeights, *, gate: Gate) -> torch.Tensor:
    """A gated linear unit (Shazeer 2020, "GLU Variants Improve Transformer") of `rows` `[num_rows, hidden]`."""
    return weights.down.times(gate(weights.gate_up.times(rows)))


def mix_experts(rows: torch.Tensor, weights: SparseWeights, *, normalised: bool, gate: Gate) -> torch.Tensor:
    """The weighted sum of what the experts that each row chooses make of it: `rows` and the result are
    `[num_rows, hidden]`.

    Rows are sorted by expert, so that the weights of each are read once. A row's experts are summed up in fp32 in the
    order of their weights, so that its result does not depend on company. Experts that are stacked are computed
    together, and the host waits for nothing; otherwise it asks the device how many rows each has.
    """
    chosen, shares = choose_experts(rows, weights, normalised=normalised)
    by_expert, order = torch.sort(chosen.flatten(), stable=True)
    sorted_rows = rows[order // weights.num_active]
    if weights.stacked is not None:
        outputs = _all_at_once(sorted_rows, by_expert, weights.stacked, gate=gate)
    else:
        outputs = _one_by_one(sorted_rows, by_expert, weights, gate=gate)
    in_order = torch.empty_like(outputs).index_copy_(0, order, outputs)
    return _weighted_sum(in_order.view(len(rows), weights.num_active, -1), shares).to(rows.dtype)


def choose_experts(
    rows: torch.Tensor, weights: SparseWeights, *, normalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row `[num_rows, num_active]`, those with the largest weights first, and these weights, in
    fp32: the router's probabilities, `normalised` to a sum of 1 or as they are (softmax over all, then the choice, as
    transformers does of Mixtral and Qwen3; Jiang et al. 2024, "Mixtral of Experts", section 2.1)."""
    probabilities = torch.softmax(weights.router.times(rows).float(), dim=-1)
    shares, chosen = torch.topk(probabilities, weights.num_active, dim=-1)
    return chosen, shares / shares.sum(dim=-1, keepdim=True) if normalised else shares


def _one_by_one(
    sorted_rows: torch.Tensor, by_expert: torch.Tensor, weights: SparseWeights, *, gate: Gate
) -> torch.Tensor:
    counts = torch.bincount(by_expert, minlength=len(weights.experts)).tolist()
    parts = zip(torch.split(sorted_rows, counts), weights.experts, strict=True)
    return torch.cat([feed_forward(part, expert, gate=gate) for part, expert in parts if len(part)])


def _all_at_once(
    sorted_rows: torch.Tensor, by_expert: torch.Tensor, stacked: StackedExperts, *, gate: Gate
) -> torch.Tensor:
    experts = torch.arange(len(stacked.down), device=by_expert.device)
    ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)  # where each expert's rows end
    inner = gate(F.grouped_mm(sorted_rows, stacked.gate_up.transpose(1, 2), offs=ends))
    return F.grouped_mm(inner, stacked.down.transpose(1, 2), offs=ends)


def _weighted_sum(outputs: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The sum of `outputs` `[num_rows, num_active, hidden]` by `shares` `[num_rows, num_active]`, in fp32."""
    if outputs.is_cuda:  # A thread there adds up all the few of a column, in one order whatever the number of rows.
        return (outputs.float() * shares.unsqueeze(-1)).sum(dim=1)
    # How a reduction on a CPU splits its work, and so its order, may depend on the number of rows.
    total = outputs[:, 0].float() * shares[:, :1]
    for rank in range(1, outputs.shape[1]):
        total.addcmul_(outputs[:, rank].float(), shares[:, rank : rank + 1])
    return total
