"""Fused RMSNorm beside the plain operations."""

from __future__ import annotations

import pytest
import torch

from serving.engine.kernels.gpu.norms import add_rms_norm, rms_norm
from serving.engine.models.operations import rms_norm as plain_rms_norm

pytestmark = pytest.mark.heavy

SIZES = [1, 20, 64, 100, 576, 2048, 2050]
TOLERANCES = {torch.float16: 2e-3, torch.float32: 1e-6}
EPS = 1e-5


def _normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm in fp64, nothing rounded."""
    wide = rows.double()
    return wide * (wide.square().mean(dim=-1, keepdim=True) + EPS).rsqrt() * weight.double()


def _close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    tolerance = TOLERANCES[result.dtype]
    return torch.allclose(result.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_are_normed_as_in_fp64(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    for num_rows in (1, 3, 33):
        rows, weight = torch.randn(num_rows, size).mul_(3).to(dtype), torch.randn(size).to(dtype)
        assert _close(rms_norm(rows, weight, EPS), _normed(rows, weight))


@pytest.mark.parametrize("size", [64, 576])
def test_rounding_is_that_of_the_plain_operations(size: int) -> None:
    torch.manual_seed(size)
    rows, weight = torch.randn(40, size).half(), torch.randn(size).half()
    # Sums in another order differ in their last bits, which seldom decide how a half is rounded.
    equal = rms_norm(rows, weight, EPS) == plain_rms_norm(rows, weight, EPS)
    assert equal.float().mean() > 0.999


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_weight_can_be_counted_from_one(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    rows, weight = torch.randn(5, 72).to(dtype), torch.randn(72).mul_(0.1).to(dtype)
    assert _close(rms_norm(rows, weight, EPS, adds_one=True), _normed(rows, 1 + weight.double()))


def test_a_weight_counted_from_one_is_applied_before_anything_is_rounded() -> None:
    torch.manual_seed(2)
    rows, weight = torch.randn(50, 128).half(), torch.randn(128).mul_(0.1).half()
    exact = _normed(rows, 1 + weight.double()).half()
    equal = rms_norm(rows, weight, EPS, adds_one=True) == exact
    assert equal.float().mean() > 0.995


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 16), (3, 20), (9, 64), (32, 128)])
def test_heads_within_a_fused_row_are_normed_in_place_of_a_copy(
    num_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(num_heads)
    fused = torch.randn(7, num_heads + 2, head_dim).to(dtype)
    weight = torch.randn(head_dim).to(dtype)
    heads = fused[:, 1:-1]
    normed = rms_norm(heads, weight, EPS)
    assert normed.shape == heads.shape
    assert normed.is_contiguous()
    assert _close(normed, _normed(heads, weight))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_is_rounded_and_then_normed(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    added, residual = torch.randn(2, 6, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    expected = added + residual
    normed, total = add_rms_norm(added, residual, weight, EPS)
    assert torch.equal(total, expected)
    assert _close(normed, _normed(expected, weight))


def test_no_row_changes_another() -> None:
    torch.manual_seed(3)
    rows, weight = torch.randn(17, 80).half(), torch.randn(80).half()
    together = rms_norm(rows, weight, EPS)
    assert torch.equal(together, torch.cat([rms_norm(row[None], weight, EPS) for row in rows]))
    rows[3] = float("nan")
    assert torch.equal(rms_norm(rows, weight, EPS)[4:], together[4:])


def test_no_rows_are_no_work() -> None:
    empty = torch.empty(0, 64)
    assert rms_norm(empty, torch.ones(64), EPS).shape == (0, 64)
