"""Paged attention in plain PyTorch: right on every device, and the measure of every other backend."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.attention.base import AttentionChunk
from serving.engine.kv_cache import BLOCK_SIZE, KVCache

TILE = 256
"""Positions read at once. Every row walks its context in tiles that begin at multiples of this, whatever the step."""
_TILE_BLOCKS = TILE // BLOCK_SIZE


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """Query rows of one sequence, consecutive from `first_row` at position `start`, all within one tile."""

    first_row: int
    start: int
    table: npt.NDArray[np.int64]

    @property
    def num_tiles(self) -> int:
        return self.start // TILE + 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Tile:
    """One tile of a group: `blocks` `[num_active * blocks a tile]` of its `num_active` first spans.

    For those from `first_ending` on it is the last tile, seen in part: `hidden` is true where a key comes after the
    query, `[num_active - first_ending, num_queries, 1, TILE]`.
    """

    num_active: int
    first_ending: int
    blocks: torch.Tensor
    hidden: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """Spans of `num_queries` rows each, those with most tiles first; `rows` `[num_spans * num_queries]`."""

    num_spans: int
    num_queries: int
    rows: torch.Tensor
    tiles: tuple[_Tile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TorchBatch:
    """Index tensors of one step: the rows' `slots` in the cache `[num_tokens]`, and what each group reads."""

    slots: torch.Tensor
    groups: tuple[_Group, ...]


class TorchAttention:
    """Owns nothing but a reference to the KV cache; called by the engine's thread.

    A context is read in fixed tiles of `TILE` positions whose partial results are combined as they come: online
    softmax (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", algorithm 1), in fp32. Tiles begin at the
    same positions, have the same size and are combined in the same order for a decode row and for a row of any prefill
    chunk, and a masked position's weight is exactly zero, so a row's result does not depend on company, chunking or
    preemption (He et al. 2025, "Defeating Nondeterminism in LLM Inference"). Query heads that share keys are rows of
    one matrix product, so that keys are read once for all of them.
    """

    name = "torch"

    def __init__(self, cache: KVCache, *, num_heads: int) -> None:
        self._cache = cache
        self._num_heads = num_heads
        self._scale = cache.head_dim**-0.5

    def prepare(self, chunks: Sequence[AttentionChunk]) -> TorchBatch:
        """Where the step's rows are stored and which blocks they read.

        Single rows form one group. A longer chunk is cut where tiles begin, each part a group of its own: this bounds
        the score matrix, and no part reads a tile past its last row.
        """
        singles: list[_Span] = []
        groups: list[_Group] = []
        slots = []
        for chunk in chunks:
            table = np.asarray(chunk.block_table, dtype=np.int64)
            slots.append(_slots(chunk, table))
            if chunk.num_tokens == 1:
                singles.append(_Span(chunk.first_row, chunk.start, table))
                continue
            for start, end in _cut_at_tiles(chunk.start, chunk.end):
                span = _Span(chunk.first_row + start - chunk.start, start, table)
                groups.append(self._group([span], end - start))
        if singles:
            groups.append(self._group(sorted(singles, key=lambda span: -span.num_tiles), 1))
        return TorchBatch(slots=self._to_device(np.concatenate(slots)), groups=tuple(groups))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, batch: TorchBatch
    ) -> torch.Tensor:
        """As `AttentionBackend.attend`."""
        self._cache.write(layer, batch.slots, keys, values)
        cached_keys, cached_values = self._cache.layer(layer)
        attended = torch.empty_like(queries)
        for group in batch.groups:
            attended[group.rows] = self._attend_group(queries[group.rows], cached_keys, cached_values, group)
        return attended.flatten(1)

    def _attend_group(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: _Group
    ) -> torch.Tensor:
        """`queries` and the result are `[num_spans * num_queries, num_heads, head_dim]`, in the order of `rows`."""
        num_kv_heads, head_dim = self._cache.num_kv_heads, self._cache.head_dim
        shared = self._num_heads // num_kv_heads
        packed = queries.view(-1, num_kv_heads, shared, head_dim).transpose(0, 1)
        packed = packed.reshape(num_kv_heads, group.num_spans, group.num_queries * shared, head_dim)
        running: _Running | None = None
        for tile in group.tiles:
            tile_keys, tile_values = (
                cached.index_select(1, tile.blocks).view(-1, TILE, head_dim) for cached in (keys, values)
            )
            active = packed[:, : tile.num_active].flatten(0, 1)
            scores = torch.bmm(active, tile_keys.transpose(1, 2)).float().mul_(self._scale)
            scores = scores.view(num_kv_heads, tile.num_active, group.num_queries, shared, TILE)
            scores[:, tile.first_ending :].masked_fill_(tile.hidden, -math.inf)
            running = _combine(running, scores.flatten(2, 3), tile_values)
        assert running is not None, "every row sees at least its own position"
        result = running.weighted.div_(running.weights).to(queries.dtype)
        result = result.view(num_kv_heads, -1, shared, head_dim).transpose(0, 1)
        return result.reshape(-1, self._num_heads, head_dim)

    def _group(self, spans: Sequence[_Span], num_queries: int) -> _Group:
        rows = np.asarray([span.first_row for span in spans])[:, None] + np.arange(num_queries)
        num_tiles = np.asarray([span.num_tiles for span in spans])
        tables = np.zeros((len(spans), num_tiles[0] * _TILE_BLOCKS), dtype=np.int64)
        for padded, span in zip(tables, spans, strict=True):
            used = span.table[: len(padded)]
            padded[: len(used)] = used
        starts = np.asarray([span.start for span in spans])
        tiles = tuple(self._tile(index, num_tiles, tables, starts, num_queries) for index in range(num_tiles[0]))
        return _Group(len(spans), num_queries, self._to_device(rows.reshape(-1)), tiles)

    def _tile(
        self,
        index: int,
        num_tiles: npt.NDArray[np.int64],
        tables: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        num_queries: int,
    ) -> _Tile:
        num_active = int((num_tiles > index).sum())
        first_ending = int((num_tiles > index + 1).sum())
        blocks = tables[:num_active, index * _TILE_BLOCKS : (index + 1) * _TILE_BLOCKS]
        last_seen = starts[first_ending:num_active, None] + np.arange(num_queries) - index * TILE
        hidden = np.arange(TILE) > last_seen[:, :, None, None]
        return _Tile(num_active, first_ending, self._to_device(blocks.reshape(-1)), self._to_device(hidden))

    def _to_device(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._cache.device)


@dataclasses.dataclass(frozen=True, slots=True)
class _Running:
    """Partial softmax of every row: `peak` its largest score so far, `weights` the sum of exp(score - peak), both
    `[num_kv_heads, num_spans, num_rows, 1]`, `weighted` the values' sum by these weights `[…, head_dim]`; all fp32."""

    peak: torch.Tensor
    weights: torch.Tensor
    weighted: torch.Tensor


def _combine(running: _Running | None, scores: torch.Tensor, values: torch.Tensor) -> _Running:
    """Add a tile: fp32 `scores` `[num_kv_heads, num_active, num_rows, TILE]` (overwritten) and its values
    `[num_kv_heads * num_active, TILE, head_dim]`. The first tile makes the state, later ones update it in place."""
    num_active = scores.shape[1]
    peak = scores.amax(dim=-1, keepdim=True)
    if running is not None:
        torch.maximum(peak, running.peak[:, :num_active], out=peak)
    weights = scores.sub_(peak).exp_()
    fresh_weights = weights.sum(dim=-1, keepdim=True)
    fresh_values = torch.bmm(weights.to(values.dtype).flatten(0, 1), values).float()
    fresh_values = fresh_values.view(*weights.shape[:3], -1)
    if running is None:
        return _Running(peak, fresh_weights, fresh_values)
    decay = running.peak[:, :num_active].sub(peak).exp_()
    running.weights[:, :num_active].mul_(decay).add_(fresh_weights)
    running.weighted[:, :num_active].mul_(decay).add_(fresh_values)
    running.peak[:, :num_active].copy_(peak)
    return running


def _cut_at_tiles(start: int, end: int) -> list[tuple[int, int]]:
    """`[start, end)` cut at the multiples of `TILE` within."""
    edges = [start, *range((start // TILE + 1) * TILE, end, TILE), end]
    return list(itertools.pairwise(edges))


def _slots(chunk: AttentionChunk, table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    positions = np.arange(chunk.start, chunk.end)
    return table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
