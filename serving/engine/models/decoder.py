"""A decoder of the Llama family as plain tensor code over ragged rows: no padding, no module hierarchy."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from serving.engine.attention.base import AttentionBackend
from serving.engine.models.config import ModelConfig
from serving.engine.models.loader import DecoderWeights, LayerWeights
from serving.engine.models.rope import RotaryTable, rotate


class Decoder:
    """Owns a model's weights and rotary table, on the engine's thread; holds no state between calls.

    Llama (Touvron et al. 2023) with its relatives' variations: grouped-query attention (Ainslie et al. 2023), RMSNorm
    (Zhang and Sennrich 2019), SwiGLU (Shazeer 2020), biases as Qwen2, query and key norms as Qwen3.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self._config = config
        self._weights = weights
        self._rotary = RotaryTable(
            config.rope,
            head_dim=config.head_dim,
            max_model_len=config.max_model_len,
            dtype=weights.embedding.dtype,
            device=weights.embedding.device,
        )

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, *, attention: AttentionBackend, batch: Any
    ) -> torch.Tensor:
        """Final hidden states, `[num_tokens, hidden_size]`, of tokens `[num_tokens]` at `positions` `[num_tokens]`.

        `attention` keeps the keys and values, `batch` is what it prepared for this step.
        """
        hidden = self._weights.embedding[token_ids]
        cosines, sines = self._rotary.at(positions)
        for index, layer in enumerate(self._weights.layers):
            normed = rms_norm(hidden, layer.input_norm, self._config.rms_norm_eps)
            queries, keys, values = self._project(normed, layer)
            context = attention.attend(
                index, rotate(queries, cosines, sines), rotate(keys, cosines, sines), values, batch=batch
            )
            hidden = linear(context, layer.output, layer.output_bias).add_(hidden)
            hidden = self._feed_forward(hidden, layer)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits `[num_rows, vocab_size]` of final hidden states `[num_rows, hidden_size]`."""
        return linear(self.normed(hidden), self._weights.vocabulary).float()

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final hidden states `[num_rows, hidden_size]` after the last norm."""
        return rms_norm(hidden, self._weights.final_norm, self._config.rms_norm_eps)

    def _project(self, normed: torch.Tensor, layer: LayerWeights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self._config
        fused = linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        queries, keys, values = torch.split_with_sizes(fused, sizes, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = rms_norm(queries, layer.query_norm, config.rms_norm_eps)
            keys = rms_norm(keys, layer.key_norm, config.rms_norm_eps)
        return queries, keys, values

    def _feed_forward(self, hidden: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        normed = rms_norm(hidden, layer.mlp_norm, self._config.rms_norm_eps)
        gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return linear(F.silu(gate).mul_(up), layer.down, layer.down_bias).add_(hidden)


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`rows` `[num_rows, in]` times `weight` `[out, in]` transposed, plus `bias` `[out]`: `[num_rows, out]`.

    In bf16 a few more rows may be computed than there are: how oneDNN sums a row depends on how many it has beside it
    (see `_num_computed`), and the last bit of a result would then depend on company.
    """
    num_rows = len(rows)
    if rows.dtype != torch.bfloat16 or (num_computed := _num_computed(num_rows)) == num_rows:
        return F.linear(rows, weight, bias)
    return F.linear(F.pad(rows, (0, 0, 0, num_computed - num_rows)), weight, bias)[:num_rows]


def _num_computed(num_rows: int) -> int:
    """How many rows to compute so that each of `num_rows` is summed in the same order as among any other number.

    A lone row of more than 1024 inputs is summed in another order than two; reading the weight is what takes the time,
    so the second costs next to nothing. With AVX-512 but without instructions for bf16, rows are dealt out to threads
    first, and it is a thread's lone row that is summed in another order: each thread needs an even number.
    """
    if _threads_differ():
        multiple = 2 * torch.get_num_threads()
        return math.ceil(num_rows / multiple) * multiple
    return max(2, num_rows)


@functools.cache
def _threads_differ() -> bool:
    instructions = torch.cpu.get_capabilities()
    return bool(instructions.get("avx512_f")) and not (instructions["avx512_bf16"] or instructions["amx_bf16"])


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`rows` `[..., size]` scaled to unit root mean square, then by `weight` `[size]`.

    Computed in fp32 and rounded before the weight is applied, as transformers does.
    """
    wide = rows.float()
    scale = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(rows.dtype).mul_(weight)
