"""Mixtures of experts compute what their formula says, in any company and however their weights are kept."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from serving.engine.models.feed_forward import choose_experts, mix_experts
from serving.engine.models.matrices import multiplies_groups
from serving.engine.models.weights import DenseWeights, PlainMatrix, SparseWeights, stacked

_HIDDEN, _INNER, _NUM_EXPERTS, _NUM_ACTIVE = 64, 48, 6, 3


def _gate(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _weights(dtype: torch.dtype, *, num_experts: int = _NUM_EXPERTS, num_active: int = _NUM_ACTIVE) -> SparseWeights:
    generator = torch.Generator().manual_seed(1)

    def matrix(num_outputs: int, num_inputs: int) -> PlainMatrix:
        return PlainMatrix((torch.randn(num_outputs, num_inputs, generator=generator) * 0.3).to(dtype))

    experts = tuple(DenseWeights(matrix(2 * _INNER, _HIDDEN), matrix(_HIDDEN, _INNER)) for _ in range(num_experts))
    return SparseWeights(matrix(num_experts, _HIDDEN), experts, num_active)


def _rows(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(count, _HIDDEN, generator=torch.Generator().manual_seed(2)).to(dtype)


def _mixed(rows: torch.Tensor, weights: SparseWeights, *, normalised: bool = True) -> torch.Tensor:
    return mix_experts(rows, weights, normalised=normalised, gate=_gate)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_row_is_the_weighted_sum_of_its_experts(*, normalised: bool) -> None:
    weights, rows = _weights(torch.float64), _rows(20, torch.float64)
    found = _mixed(rows, weights, normalised=normalised)
    for row, mixed in zip(rows, found, strict=True):
        probabilities = (weights.router.plain() @ row).softmax(dim=0)
        chosen = probabilities.argsort(descending=True)[:_NUM_ACTIVE].tolist()
        shares = probabilities[chosen] / (probabilities[chosen].sum() if normalised else 1.0)
        expected = sum(
            share * (weights.experts[expert].down.plain() @ _gate(weights.experts[expert].gate_up.plain() @ row))
            for share, expert in zip(shares, chosen, strict=True)
        )
        assert torch.allclose(mixed, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_experts_that_no_row_chooses_are_not_asked(dtype: torch.dtype) -> None:
    """Their weights are not finite, which would show in a product with any of them."""
    weights, rows = _weights(dtype), _rows(1, dtype)
    chosen, _ = choose_experts(rows, weights, normalised=True)
    expected = _mixed(rows, weights)
    for expert in set(range(_NUM_EXPERTS)) - set(chosen.flatten().tolist()):
        weights.experts[expert].down.plain().fill_(torch.nan)
    assert torch.equal(_mixed(rows, weights), expected)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_row_does_not_depend_on_company(*, normalised: bool) -> None:
    weights, rows = _weights(torch.bfloat16), _rows(130, torch.bfloat16)
    alone = torch.cat([_mixed(row[None], weights, normalised=normalised) for row in rows])
    for count in (2, 3, 7, 16, 33, 64, 130):
        together = torch.cat([_mixed(part, weights, normalised=normalised) for part in rows.split(count)])
        assert torch.equal(together, alone), f"{count} rows at once"


@pytest.mark.parametrize("num_rows", [1, 2, 40])
def test_stacked_experts_compute_the_same(num_rows: int) -> None:
    """Also where most of them have no row."""
    weights = _weights(torch.bfloat16, num_experts=16, num_active=2)
    together = stacked(weights)
    assert together.stacked is not None
    rows = _rows(num_rows, torch.bfloat16)
    assert torch.allclose(_mixed(rows, together).float(), _mixed(rows, weights).float(), atol=2e-2, rtol=2e-2)
    assert torch.equal(_mixed(rows, together.mapped(lambda matrix: matrix)), _mixed(rows, weights))
    assert together.num_bytes == weights.num_bytes


def test_experts_that_grouped_products_do_not_take_stay_as_they_are() -> None:
    weights = _weights(torch.float32)
    assert stacked(weights) is weights
    odd = PlainMatrix(torch.ones(2 * 5, 12, dtype=torch.bfloat16))
    assert stacked(SparseWeights(odd, (DenseWeights(odd, odd),), 1)).stacked is None


@pytest.mark.parametrize(
    ("capability", "multiplies"),
    [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)],
)
def test_experts_are_stacked_where_grouped_products_do_not_ask_the_host(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch, *, multiplies: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert multiplies_groups(torch.device("cuda")) is multiplies
    assert not multiplies_groups(torch.device("cpu"))


def test_a_step_reads_at_least_the_experts_of_one_token() -> None:
    weights = _weights(torch.bfloat16)
    expert_bytes = 2 * 3 * _HIDDEN * _INNER
    assert weights.experts[0].num_bytes == expert_bytes
    assert weights.num_bytes == _NUM_ACTIVE * expert_bytes + 2 * _NUM_EXPERTS * _HIDDEN
