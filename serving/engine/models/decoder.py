"""A decoder of the Llama family as plain tensor code over ragged rows: no padding, no module hierarchy."""

from __future__ import annotations

from typing import Any

import torch

from serving.engine.attention.base import AttentionBackend
from serving.engine.models.config import ModelConfig
from serving.engine.models.feed_forward import feed_forward, mix_experts
from serving.engine.models.operations import Operations
from serving.engine.models.rope import RotaryTable
from serving.engine.models.rope_config import RopeConfig
from serving.engine.models.weights import DecoderWeights, DenseWeights, LayerWeights, SparseWeights


class Decoder:
    """Owns a model's weights and rotary tables, on the engine's thread; holds no state between calls.

    Llama (Touvron et al. 2023) with its relatives' variations: grouped-query attention (Ainslie et al. 2023), RMSNorm
    (Zhang and Sennrich 2019), gated linear units (Shazeer 2020), biases as Qwen2, query and key norms as Qwen3, norms
    of outputs, scaled embeddings and softcaps as Gemma 2 and 3 (Gemma Team 2024 and 2025), mixtures of experts as
    Mixtral (Jiang et al. 2024). What is computed between the products, and on which device, is the business of its
    `operations`.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, operations: Operations) -> None:
        self._config = config
        self._weights = weights
        self._operations = operations
        ropes = [config.rope] if config.local_rope is None else [config.rope, config.local_rope]
        self._rotary = [self._rotary_table(rope) for rope in ropes]
        self._table_of_layer = [int(config.layer(index).has_local_rope) for index in range(config.num_layers)]
        # Rounded to the model's dtype, as it was when Gemma was trained.
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=weights.embedding.dtype))

    @property
    def reads_back(self) -> bool:
        """Whether `forward` waits for numbers from the device to decide what to launch: such steps cannot be
        captured."""
        parts = [layer.feed_forward for layer in self._weights.layers]
        return any(isinstance(part, SparseWeights) and part.stacked is None for part in parts)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, *, attention: AttentionBackend, batch: Any
    ) -> torch.Tensor:
        """Final hidden states, `[num_tokens, hidden_size]`, of tokens `[num_tokens]` whose rows of the rotary table are
        `positions` `[num_tokens]` (see `rotary_rows`).

        `attention` keeps the keys and values, `batch` is what it prepared for this step.
        """
        operations = self._operations
        hidden = self._embed(token_ids)
        rotations = [table.at(positions) for table in self._rotary]
        added: torch.Tensor | None = None
        for index, layer in enumerate(self._weights.layers):
            if added is None:
                normed = operations.rms_norm(hidden, layer.input_norm)
            else:
                normed, hidden = operations.add_rms_norm(added, hidden, layer.input_norm)
            context = operations.attend(
                index,
                layer.qkv.times(normed),
                layer=layer,
                rotation=rotations[self._table_of_layer[index]],
                attention=attention,
                batch=batch,
            )
            attended = self._normed_output(layer.output.times(context), layer.attention_output_norm)
            normed, hidden = operations.add_rms_norm(attended, hidden, layer.mlp_norm)
            added = self._normed_output(self._feed_forward(normed, layer), layer.mlp_output_norm)
        return hidden if added is None else added.add_(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits `[num_rows, vocab_size]` of final hidden states `[num_rows, hidden_size]`."""
        logits = self._weights.vocabulary.times(self.normed(hidden)).float()
        softcap = self._config.logit_softcap
        return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final hidden states `[num_rows, hidden_size]` after the last norm."""
        return self._operations.rms_norm(hidden, self._weights.final_norm)

    def _rotary_table(self, rope: RopeConfig) -> RotaryTable:
        embedding = self._weights.embedding
        return RotaryTable(
            rope,
            head_dim=self._config.head_dim,
            max_model_len=self._config.max_model_len,
            dtype=embedding.dtype,
            device=embedding.device,
        )

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = self._weights.embedding[token_ids]
        return hidden if self._embedding_scale == 1 else hidden.mul_(self._embedding_scale)

    def _normed_output(self, output: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        return output if norm is None else self._operations.rms_norm(output, norm)

    def _feed_forward(self, normed: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        part, experts = layer.feed_forward, self._config.experts
        if isinstance(part, DenseWeights):
            return feed_forward(normed, part, gate=self._operations.gate)
        assert experts is not None, "weights of experts come with their configuration"
        return mix_experts(normed, part, normalised=experts.normalised, gate=self._operations.gate)
