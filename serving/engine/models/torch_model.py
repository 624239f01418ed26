"""A model in plain PyTorch operations: right on every device, and the measure of every other implementation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionBackend
from serving.engine.kv_cache import KVCache
from serving.engine.models.config import ModelConfig
from serving.engine.models.decoder import Decoder
from serving.engine.models.layer_attention import layer_attention
from serving.engine.models.model import Batch, Computed
from serving.engine.models.operations import Operations, TorchOperations
from serving.engine.models.weights import DecoderWeights
from serving.engine.transfers import upload


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A step's rows on the device; `attention` is what its backend prepared."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    logit_rows: torch.Tensor
    hidden_rows: torch.Tensor
    attention: Any


MakeOperations = Callable[[ModelConfig, KVCache], Operations]
"""Makes what a decoder computes between its products, for a model with this KV cache."""


def _plain_operations(config: ModelConfig, cache: KVCache) -> Operations:
    return TorchOperations(config)


class TorchModel:
    """Owns a decoder, its KV cache and the attention backend over it; called by the engine's thread only."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        attention: str = "torch",
        make_operations: MakeOperations = _plain_operations,
    ) -> None:
        """With the attention backend of this name, and what `make_operations` makes."""
        self.name = attention
        """As `Model.name`."""
        self.device = device
        self.vocab_size = config.vocab_size
        self.num_blocks = num_blocks
        """As `Model.num_blocks`."""
        self._cache = cache = KVCache(config, num_blocks=num_blocks, dtype=dtype, device=device)
        layers = layer_attention(config)
        self.backend = make_attention(attention, cache, num_heads=config.num_heads, layers=layers)
        self._attention = _Timed(self.backend)
        self._decoder = Decoder(config, weights, make_operations(config, cache))
        self.weight_bytes = weights.num_bytes
        """As `Model.weight_bytes`."""

    def resize(self, num_blocks: int) -> None:
        """As `ResizableModel.resize`."""
        self._cache.resize(num_blocks)
        self.num_blocks = num_blocks

    def prepare(self, batch: Batch) -> Prepared:
        """As `Model.prepare`."""
        token_ids, positions, logit_rows, hidden_rows = upload(
            batch.token_ids, batch.positions, batch.logit_rows, batch.hidden_rows, device=self.device
        )
        if batch.awaited is not None:
            rows, places = upload(batch.awaited.rows, batch.awaited.places, device=self.device)
            token_ids.index_copy_(0, rows, batch.awaited.chosen[places])
        return Prepared(token_ids, positions, logit_rows, hidden_rows, self._attention.prepare(batch.chunks))

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> Computed:
        """As `Model.forward`. On a GPU attention cannot be told from the rest: it is started here, not awaited."""
        self._attention.seconds = 0.0
        hidden = self.hidden(prepared.token_ids, prepared.positions, batch=prepared.attention)
        rows = hidden[prepared.logit_rows]
        logits = self.logits(rows) if len(rows) else rows.new_empty((0, 0), dtype=torch.float32)
        seconds = self._attention.seconds if self.device.type == "cpu" else 0.0
        rows = hidden[prepared.hidden_rows]
        wanted = self._decoder.normed(rows).float() if len(rows) else rows.float()
        return Computed(logits, wanted, self.is_unsound(hidden), attention_seconds=seconds)

    @property
    def reads_back(self) -> bool:
        """As `Decoder.reads_back`."""
        return self._decoder.reads_back

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, *, batch: Any) -> torch.Tensor:
        """As `Decoder.forward`; `batch` is of this model's attention backend."""
        return self._decoder.forward(token_ids, positions, attention=self._attention, batch=batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Decoder.logits`."""
        return self._decoder.logits(hidden)

    def is_unsound(self, hidden: torch.Tensor) -> torch.Tensor:
        """Which rows of final hidden states have numbers that are not finite, bool `[num_rows]`.

        Looked for here, since the KV cache does not hand such numbers on: a later row would look sound.
        """
        return ~hidden.isfinite().all(dim=-1)


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

    def attend_stored(self, layer: int, queries: torch.Tensor, *, batch: Any) -> torch.Tensor:
        began = time.perf_counter()
        attended = self._backend.attend_stored(layer, queries, batch=batch)
        self.seconds += time.perf_counter() - began
        return attended
