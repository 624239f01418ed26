"""Attention of two backends over the same cache, keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionBackend, AttentionChunk, LayerAttention
from serving.engine.kv_cache import BLOCK_SIZE, KVCache
from serving.engine.models.config import ModelConfig, RopeConfig


@dataclasses.dataclass(frozen=True)
class Heads:
    """A model's attention: query heads, key heads, dimensions."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def make_cache(heads: Heads, *, num_blocks: int, dtype: torch.dtype, num_layers: int = 1) -> KVCache:
    """A cache full of what sequences before left there: finite, and wrong for whoever reads it by mistake."""
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=100,
        hidden_size=64,
        intermediate_size=64,
        num_layers=num_layers,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        rms_norm_eps=1e-5,
        rope=RopeConfig(),
        max_model_len=8192,
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        eos_token_ids=frozenset(),
    )
    cache = KVCache(config, num_blocks=num_blocks, dtype=dtype, device=torch.device("cpu"))
    for layer in range(num_layers):
        for part in cache.layer(layer):
            part.fill_(9e3)
    return cache


@dataclasses.dataclass(frozen=True)
class Scene:
    """Sequences in a cache whose blocks lie in random order, and queries of all their positions.

    The keys and values are in the cache already; `attend` gives a backend's results for rows of some of them.
    """

    heads: Heads
    cache: KVCache
    queries: tuple[torch.Tensor, ...]
    tables: tuple[list[int], ...]

    def backend(self, name: str, *layers: LayerAttention) -> AttentionBackend:
        return make_attention(name, self.cache, num_heads=self.heads.num_heads, layers=layers)

    def chunks(self, parts: Sequence[tuple[int, int, int]], *, is_prefill: bool | None = None) -> list[AttentionChunk]:
        """Rows `[start, end)` of the sequences by index, in one step."""
        chunks, first_row = [], 0
        for index, start, end in parts:
            chunks.append(AttentionChunk(first_row, end - start, start, self.tables[index], is_prefill))
            first_row += end - start
        return chunks

    def rows(self, parts: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        return torch.cat([self.queries[index][start:end] for index, start, end in parts])

    def attend(
        self,
        backend: AttentionBackend,
        parts: Sequence[tuple[int, int, int]],
        *,
        layer: int = 0,
        is_prefill: bool | None = None,
    ) -> torch.Tensor:
        batch = backend.prepare(self.chunks(parts, is_prefill=is_prefill))
        return backend.attend_stored(layer, self.rows(parts), batch=batch)


def make_scene(heads: Heads, lengths: Sequence[int], dtype: torch.dtype, *, num_layers: int = 1) -> Scene:
    generator = torch.Generator().manual_seed(5)
    sizes = [-(-length // BLOCK_SIZE) for length in lengths]
    cache = make_cache(heads, num_blocks=sum(sizes) + 3, dtype=dtype, num_layers=num_layers)
    order = torch.randperm(cache.num_blocks, generator=generator)
    tables = [table.tolist() for table in order[: sum(sizes)].split(sizes)]
    queries = []
    for length, table in zip(lengths, tables, strict=True):
        positions = torch.arange(length)
        slots = torch.tensor(table)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        for layer in range(num_layers):
            keys, values = (
                torch.randn(length, heads.num_kv_heads, heads.head_dim, generator=generator) for _ in range(2)
            )
            cache.write(layer, slots, keys.to(dtype), values.to(dtype))
        # A view of wider rows, as queries that were split from a fused product are.
        fused = torch.randn(length, heads.num_heads + 1, heads.head_dim, generator=generator).to(dtype)
        queries.append(fused[:, 1:])
    return Scene(heads, cache, tuple(queries), tuple(tables))
