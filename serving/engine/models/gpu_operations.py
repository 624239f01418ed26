"""What a decoder computes between its products, fused into few kernels: each reads and writes its rows once."""

from __future__ import annotations

from typing import Any

import torch

from serving.engine.attention.base import AttentionBackend
from serving.engine.kernels.gpu.activations import gate
from serving.engine.kernels.gpu.norms import add_rms_norm, rms_norm
from serving.engine.kernels.gpu.rotary import HeadNorm, rotate_and_store
from serving.engine.kv_cache import KVCache
from serving.engine.models.config import ModelConfig
from serving.engine.models.rope import Rotation
from serving.engine.models.weights import LayerWeights


class GpuOperations:
    """Owns nothing but references to a model's configuration and KV cache; called by the engine's thread.

    Rounds to the rows' dtype where `TorchOperations` does; sums in another order, so that a last bit may differ. Needs
    Triton: import it only where that is.
    """

    def __init__(self, config: ModelConfig, cache: KVCache) -> None:
        """`cache` is the one over which the attention backend was made that is passed to `attend`."""
        self._config = config
        self._cache = cache

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As `Operations.rms_norm`."""
        return rms_norm(rows, weight, self._config.rms_norm_eps, adds_one=self._config.norm_adds_one)

    def add_rms_norm(
        self, added: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Operations.add_rms_norm`."""
        config = self._config
        return add_rms_norm(added, residual, weight, config.rms_norm_eps, adds_one=config.norm_adds_one)

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
        """As `Operations.attend`: all between the product and attention is one kernel."""
        keys, values = self._cache.layer(index)
        queries = rotate_and_store(
            fused,
            num_heads=self._config.num_heads,
            cosines=rotation.cosines,
            sines=rotation.sines,
            slots=batch.slots,
            keys=keys,
            values=values,
            norm=self._head_norm(layer),
        )
        return attention.attend_stored(index, queries, batch=batch)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `Operations.gate`."""
        return gate(gate_up, self._config.activation)

    def _head_norm(self, layer: LayerWeights) -> HeadNorm | None:
        if layer.query_norm is None or layer.key_norm is None:
            return None
        config = self._config
        return HeadNorm(layer.query_norm, layer.key_norm, config.rms_norm_eps, config.norm_adds_one)
