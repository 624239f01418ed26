"""What a decoder computes between its products, and how plain PyTorch does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional as F  # noqa: N812

from serving.engine.attention.base import AttentionBackend
from serving.engine.models.config import ModelConfig
from serving.engine.models.families import Activation
from serving.engine.models.rope import Rotation, rotate
from serving.engine.models.weights import LayerWeights


class Operations(Protocol):
    """The arithmetic of one model's layers on one device. Owns no state; its results go to the caller, who may change
    them. Rows are independent of each other."""

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """`rows` `[num_rows, size]` scaled to unit root mean square, then by `weight` `[size]`, or by 1 + `weight` in
        models whose `norm_adds_one`."""
        ...

    def add_rms_norm(
        self, added: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of `added` and `residual`, both `[num_rows, size]` and no longer the caller's: first normed as by
        `rms_norm`, then as it is."""
        ...

    def attend(
        self,
        index: int,
        fused: torch.Tensor,
        *,
        layer: LayerWeights,
        rotation: Rotation,
        attention: AttentionBackend,
        batch: Any,
    ) -> torch.Tensor:
        """Attention of layer number `index`: `fused` `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]` is what
        its product makes of the step's rows. Queries and keys are normed where the layer has weights for it, and
        rotated; keys and values are stored; the result is `[num_tokens, num_heads * head_dim]`."""
        ...

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The model's activation of the first half of `gate_up` `[num_rows, 2 * size]` times the second:
        `[num_rows, size]`."""
        ...


class TorchOperations:
    """Plain PyTorch: right on every device, and the measure of every other implementation. Rounds to the rows' dtype
    where transformers does."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._norm = rms_norm_adding_one if config.norm_adds_one else rms_norm
        self._activate = _ACTIVATIONS[config.activation]

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As `Operations.rms_norm`; of rows with more dimensions, the last is normed."""
        return self._norm(rows, weight, self._config.rms_norm_eps)

    def add_rms_norm(
        self, added: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Operations.add_rms_norm`."""
        total = added.add_(residual)
        return self.rms_norm(total, weight), total

    def attend(
        self,
        index: int,
        fused: torch.Tensor,
        *,
        layer: LayerWeights,
        rotation: Rotation,
        attention: AttentionBackend,
        batch: Any,
    ) -> torch.Tensor:
        """As `Operations.attend`."""
        config = self._config
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        queries, keys, values = torch.split_with_sizes(fused.view(len(fused), -1, config.head_dim), sizes, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = self.rms_norm(queries, layer.query_norm)
            keys = self.rms_norm(keys, layer.key_norm)
        return attention.attend(index, rotate(queries, rotation), rotate(keys, rotation), values, batch=batch)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `Operations.gate`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self._activate(gate).mul_(up)


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`rows` `[..., size]` scaled to unit root mean square, then by `weight` `[size]` (Zhang and Sennrich 2019).

    Computed in fp32 and rounded before the weight is applied, as transformers does.
    """
    return _to_unit(rows, eps).to(rows.dtype).mul_(weight)


def rms_norm_adding_one(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `rms_norm`, but scaled by 1 + `weight`, and rounded after that: as Gemma's own code and transformers do."""
    return _to_unit(rows, eps).mul_(weight.float() + 1.0).to(rows.dtype)


def _to_unit(rows: torch.Tensor, eps: float) -> torch.Tensor:
    wide = rows.float()
    scale = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return wide * scale


def _gelu_tanh(gate: torch.Tensor) -> torch.Tensor:
    """Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2, in its approximation by tanh."""
    return F.gelu(gate, approximate="tanh")


_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {"silu": F.silu, "gelu_tanh": _gelu_tanh}
