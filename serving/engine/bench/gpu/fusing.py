"""What one kernel saves where PyTorch would launch several: Triton's beside torch.compile's and plain operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812

from serving.engine.bench.gpu.checks import EPS
from serving.engine.bench.gpu.shapes import packed_weights
from serving.engine.bench.gpu.timing import Stopwatch
from serving.engine.kernels.gpu.activations import gate
from serving.engine.kernels.gpu.norms import add_rms_norm
from serving.engine.kernels.gpu.products import dequantise, multiply
from serving.engine.models.config import ModelConfig
from serving.engine.models.operations import rms_norm


@dataclasses.dataclass(frozen=True, slots=True)
class FusedFigures:
    """Microseconds of one piece of work, by how it is computed; `least` is what it reads and writes over the memory's
    bandwidth. None where it was not measured."""

    work: str
    num_rows: int
    triton: float
    plain: float
    compiled: float | None
    least: float


def measure_fusing(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, *, num_rows: int, bandwidth: float
) -> list[FusedFigures]:
    """Time norms and gates of `num_rows` rows. `bandwidth` is in bytes a second. On a CPU nothing is compiled."""
    watch = Stopwatch(device)
    rows = torch.randn(num_rows, config.hidden_size, device=device, dtype=dtype)
    residual, weight = torch.randn_like(rows), torch.randn(config.hidden_size, device=device, dtype=dtype)
    gate_up = torch.randn(num_rows, 2 * config.intermediate_size, device=device, dtype=dtype)

    def plain_norm(added: torch.Tensor, to: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = added + to
        return rms_norm(total, weight, EPS), total

    def plain_gate(both: torch.Tensor) -> torch.Tensor:
        gates, ups = both.chunk(2, dim=-1)
        return F.silu(gates) * ups

    def timed(name: str, fused: Callable[[], object], plain: Callable[..., object], *arguments: torch.Tensor) -> None:
        num_bytes = sum(argument.nbytes for argument in arguments)
        written = num_bytes if name == "norm" else num_bytes // 2
        is_cuda = device.type == "cuda"
        compiled = torch.compile(plain, dynamic=False) if is_cuda else plain
        figures.append(
            FusedFigures(
                name,
                num_rows,
                _microseconds(watch, fused),
                _microseconds(watch, lambda: plain(*arguments)),
                _microseconds(watch, lambda: compiled(*arguments)) if is_cuda else None,
                round((num_bytes + written) / bandwidth * 1e6, 2),
            )
        )

    figures: list[FusedFigures] = []
    timed("norm", lambda: add_rms_norm(rows, residual, weight, EPS), plain_norm, rows, residual)
    timed("gate", lambda: gate(gate_up), plain_gate, gate_up)
    return figures


def measure_products(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, *, num_rows: int, bandwidth: float
) -> list[FusedFigures]:
    """Time a product of `num_rows` rows with packed weights: made whole on the way (`triton`), or first (`plain`)."""
    watch = Stopwatch(device)
    rows = torch.randn(num_rows, config.hidden_size, device=device, dtype=dtype)
    figures = []
    for kind in ("int4", "int8", "fp8"):
        weights = packed_weights(kind, (2 * config.intermediate_size, config.hidden_size), device)
        fused = _microseconds(watch, lambda weights=weights: multiply(rows, weights))  # type: ignore[misc]
        plain = _microseconds(watch, lambda weights=weights: F.linear(rows, dequantise(weights, dtype)))  # type: ignore[misc]
        least = round(weights.num_bytes / bandwidth * 1e6, 2)
        figures.append(FusedFigures(f"{kind} product", num_rows, fused, plain, None, least))
    return figures


def _microseconds(watch: Stopwatch, work: Callable[[], object]) -> float:
    return round(watch.seconds(work) * 1e6, 2)
