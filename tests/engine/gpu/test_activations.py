"""Gated activations in one kernel beside PyTorch's operations in fp64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from serving.engine.kernels.gpu.activations import gate
from serving.engine.models.families import Activation

# In the interpreter an exponential that overflows warns; it is meant to be infinite.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]

TOLERANCES = {torch.float16: 2e-3, torch.float32: 1e-6}


def _gated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    gates, ups = gate_up.double().chunk(2, dim=-1)
    return (F.silu(gates) if activation == "silu" else F.gelu(gates, approximate="tanh")) * ups


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", [1, 96, 100, 1024, 1030])
def test_rows_are_gated_as_in_fp64(size: int, activation: Activation, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    for num_rows in (1, 5):
        gate_up = torch.randn(num_rows, 2 * size).mul_(3).to(dtype)
        gated = gate(gate_up, activation)
        assert gated.dtype == dtype
        tolerance = TOLERANCES[dtype]
        assert torch.allclose(gated.double(), _gated(gate_up, activation), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_far_from_zero_an_activation_is_nothing_or_all(activation: Activation) -> None:
    far = torch.tensor([[-60000.0, -100.0, 100.0, 60000.0, 1.0, 1.0, 1.0, 1.0]])
    assert gate(far.half(), activation).tolist() == [[0.0, 0.0, 100.0, 60000.0]]


def test_an_activation_is_rounded_before_the_product() -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(20, 400).half()
    gates, ups = gate_up.chunk(2, dim=-1)
    equal = gate(gate_up) == F.silu(gates) * ups
    assert equal.float().mean() > 0.999


def test_no_rows_are_no_work() -> None:
    assert gate(torch.empty(0, 8)).shape == (0, 4)
