"""Whole decoders with fused operations beside the plain ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionChunk
from serving.engine.kv_cache import KVCache
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.decoder import Decoder
from serving.engine.models.gpu_operations import GpuOperations
from serving.engine.models.layer_attention import layer_attention
from serving.engine.models.loader import load_weights
from serving.engine.models.operations import Operations, TorchOperations
from serving.engine.models.weights import DecoderWeights

pytestmark = pytest.mark.heavy

# Head norms, Gemma's norms, activation and ropes a layer, partial rotary, odd sizes.
FAMILIES = ["llama", "qwen3", "gemma3", "phi4-mini", "heads-of-20", "odd-sizes"]
NUM_BLOCKS = 16
STEPS = [
    [AttentionChunk(0, 8, 0, (3, 5)), AttentionChunk(8, 1, 0, (7,))],
    [AttentionChunk(0, 1, 8, (3, 5)), AttentionChunk(1, 5, 1, (7, 1))],
]
"""Two steps of two sequences: prompts, decoding and a prompt's rest, in blocks of no order."""


@functools.cache
def _weights(folder: Path, dtype: torch.dtype) -> tuple[ModelConfig, DecoderWeights]:
    config = read_config(folder)
    return config, load_weights(folder, config, dtype=dtype, device=torch.device("cpu"))


def _compute(
    config: ModelConfig, weights: DecoderWeights, make_operations: Callable[[KVCache], Operations], dtype: torch.dtype
) -> tuple[torch.Tensor, KVCache]:
    """The logits of all rows of `STEPS`, and the cache after them."""
    cache = KVCache(config, num_blocks=NUM_BLOCKS, dtype=dtype, device=torch.device("cpu"))
    attention = make_attention("torch", cache, num_heads=config.num_heads, layers=layer_attention(config))
    decoder = Decoder(config, weights, make_operations(cache))
    generator = torch.Generator().manual_seed(8)
    logits = []
    for chunks in STEPS:
        token_ids = torch.randint(
            3, config.vocab_size, (chunks[-1].first_row + chunks[-1].num_tokens,), generator=generator
        )
        hidden = decoder.forward(token_ids, _positions(chunks), attention=attention, batch=attention.prepare(chunks))
        logits.append(decoder.logits(hidden))
    return torch.cat(logits), cache


def _positions(chunks: Sequence[AttentionChunk]) -> torch.Tensor:
    return torch.cat([torch.arange(chunk.start, chunk.end) for chunk in chunks])


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_and_cache_are_those_of_the_plain_operations(family: str, tiny_model: Callable[[str], Path]) -> None:
    config, weights = _weights(tiny_model(family), torch.float32)
    plain, plain_cache = _compute(config, weights, lambda _: TorchOperations(config), torch.float32)
    fused, fused_cache = _compute(config, weights, lambda cache: GpuOperations(config, cache), torch.float32)
    assert torch.allclose(fused, plain, rtol=1e-4, atol=1e-4)
    assert torch.equal(fused.argmax(dim=-1), plain.argmax(dim=-1))
    for index in range(config.num_layers):
        for ours, theirs in zip(fused_cache.layer(index), plain_cache.layer(index), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.inference_mode()
def test_tokens_in_halves_are_those_of_the_plain_operations(family: str, tiny_model: Callable[[str], Path]) -> None:
    config, weights = _weights(tiny_model(family), torch.float16)
    plain, _ = _compute(config, weights, lambda _: TorchOperations(config), torch.float16)
    fused, _ = _compute(config, weights, lambda cache: GpuOperations(config, cache), torch.float16)
    assert torch.allclose(fused, plain, rtol=2e-2, atol=2e-2)
    assert (fused.argmax(dim=-1) == plain.argmax(dim=-1)).float().mean() > 0.95
