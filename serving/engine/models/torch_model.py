"""A model in plain PyTorch operations: right on every device, and the measure of every other implementation."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionBackend
from serving.engine.kv_cache import KVCache
from serving.engine.models.config import ModelConfig
from serving.engine.models.decoder import Decoder
from serving.engine.models.loader import DecoderWeights
from serving.engine.models.model import Batch, Computed


@dataclasses.dataclass(frozen=True, slots=True)
class _Prepared:
    token_ids: torch.Tensor
    positions: torch.Tensor
    logit_rows: torch.Tensor
    hidden_rows: torch.Tensor
    attention: Any


class TorchModel:
    """Owns a decoder, its KV cache and the attention backend over it; called by the engine's thread only."""

    name = "torch"

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        attention: str = "torch",
    ) -> None:
        self._device = device
        self.num_blocks = num_blocks
        """As `Model.num_blocks`."""
        cache = KVCache(config, num_blocks=num_blocks, dtype=dtype, device=device)
        self._attention = _Timed(make_attention(attention, cache, num_heads=config.num_heads))
        self._decoder = Decoder(config, weights)
        matrices = [(layer.qkv, layer.output, layer.gate_up, layer.down) for layer in weights.layers]
        self.weight_bytes = weights.vocabulary.nbytes + sum(part.nbytes for layer in matrices for part in layer)
        """As `Model.weight_bytes`."""

    def prepare(self, batch: Batch) -> _Prepared:
        """As `Model.prepare`."""
        return _Prepared(
            self._to_device(batch.token_ids),
            self._to_device(batch.positions),
            self._to_device(batch.logit_rows),
            self._to_device(batch.hidden_rows),
            self._attention.prepare(batch.chunks),
        )

    @torch.inference_mode()
    def forward(self, prepared: _Prepared) -> Computed:
        """As `Model.forward`. On a GPU attention cannot be told from the rest: it is started here, not awaited."""
        self._attention.seconds = 0.0
        hidden = self._decoder.forward(
            prepared.token_ids, prepared.positions, attention=self._attention, batch=prepared.attention
        )
        rows = hidden[prepared.logit_rows]
        logits = self._decoder.logits(rows) if len(rows) else rows.new_empty((0, 0), dtype=torch.float32)
        # Looked for here, since the KV cache does not hand such numbers on: a later row would look sound.
        unsound = (~hidden.isfinite().all(dim=-1)).nonzero().squeeze(-1)
        seconds = self._attention.seconds if self._device.type == "cpu" else 0.0
        rows = hidden[prepared.hidden_rows]
        wanted = self._decoder.normed(rows).float() if len(rows) else rows.float()
        return Computed(logits, wanted, unsound.cpu().numpy(), attention_seconds=seconds)

    def _to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


class _Timed:
    """Owns the measure of how long a backend's `attend` took since it was last set to zero."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self.seconds = 0.0
        self.prepare = backend.prepare

    @property
    def name(self) -> str:
        return self._backend.name

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, batch: Any
    ) -> torch.Tensor:
        began = time.perf_counter()
        attended = self._backend.attend(layer, queries, keys, values, batch=batch)
        self.seconds += time.perf_counter() - began
        return attended
