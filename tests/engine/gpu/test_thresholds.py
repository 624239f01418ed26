"""The kernel for top_k and top_p keeps the very tokens that sorting a row keeps."""

from __future__ import annotations

import pytest
import torch

from serving.engine.kernels.gpu import thresholds as kernel
from serving.engine.kernels.gpu.thresholds import find_thresholds
from serving.engine.sampling.thresholds import thresholds_of

pytestmark = pytest.mark.heavy


def _weights(logits: torch.Tensor) -> torch.Tensor:
    return (logits - logits.amax(dim=-1, keepdim=True)).exp()


def _check(weights: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    """Compare what is kept; where rounding decides a sum, one weight more or less may be."""
    totals = weights.sum(dim=-1, dtype=torch.float64)
    ranks, shares = torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64)
    found = find_thresholds(weights, totals, ranks, shares)
    expected = thresholds_of(weights, totals, ranks, shares)
    assert ((weights >= found[:, None]) == (weights >= expected[:, None])).all()
    return found


@pytest.mark.parametrize("vocab_size", [1, 301, 2048, 4100])
@pytest.mark.parametrize("spread", [0.3, 6.0])
def test_it_keeps_what_sorting_keeps(vocab_size: int, spread: float) -> None:
    settings = [
        (vocab_size, 0.9),
        (1, 1.0),
        (min(40, vocab_size), 1.0),
        (min(40, vocab_size), 0.7),
        (max(1, vocab_size - 1), 0.99),
        (vocab_size, 0.001),
        (vocab_size, 0.9999),
    ]
    logits = torch.randn(len(settings), vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread
    _check(_weights(logits), [top_k for top_k, _ in settings], [top_p for _, top_p in settings])


def test_equal_weights_are_kept_together() -> None:
    logits = (torch.randn(4, 900, generator=torch.Generator().manual_seed(1)) * 3).round()
    found = _check(_weights(logits), [7, 100, 900, 50], [1.0, 0.5, 0.8, 0.95])
    assert all(threshold in row for threshold, row in zip(found.tolist(), _weights(logits).tolist(), strict=True))


def test_weights_of_nought_are_kept_where_all_are_needed() -> None:
    weights = torch.zeros(2, 300)
    weights[:, 5] = 1.0
    found = find_thresholds(
        weights, torch.tensor([1.0, 2.0]).double(), torch.tensor([300, 300]), torch.tensor([0.5, 0.9]).double()
    )
    assert found.tolist() == [1.0, 0.0]


def test_rows_that_are_not_finite_harm_no_other() -> None:
    weights = _weights(torch.randn(3, 700, generator=torch.Generator().manual_seed(2)))
    alone = _check(weights[:1], [20], [0.9])
    weights[1] = torch.nan
    totals = weights.sum(dim=-1, dtype=torch.float64)
    found = find_thresholds(weights, totals, torch.tensor([20] * 3), torch.tensor([0.9] * 3).double())
    assert found[0] == alone[0]


def test_rows_may_lie_apart() -> None:
    wide = _weights(torch.randn(3, 1000, generator=torch.Generator().manual_seed(3)))
    part = wide[:, :600]
    totals = part.sum(dim=-1, dtype=torch.float64)
    ranks, shares = torch.tensor([600, 10, 600]), torch.tensor([0.5, 1.0, 0.9]).double()
    apart = find_thresholds(part, totals, ranks, shares)
    assert apart.equal(find_thresholds(part.contiguous(), totals, ranks, shares))
    assert kernel._TILE > 600
