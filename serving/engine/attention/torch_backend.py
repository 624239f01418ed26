"""Paged attention in plain PyTorch: right on every device, and the measure of every other backend."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.attention.base import AttentionChunk, LayerAttention
from serving.engine.kv_cache import BLOCK_SIZE, KVCache
from serving.engine.transfers import upload

TILE = 256
"""Positions read at once. Every row walks its context in tiles that begin at multiples of this, whatever the step."""
_TILE_BLOCKS = TILE // BLOCK_SIZE
_LOWEST = torch.finfo(torch.float32).min


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """Query rows of one sequence, consecutive from `first_row` at position `start`, all within one tile.

    They read the tiles from `first_tile` on: the first that the first row sees any of.
    """

    first_row: int
    start: int
    table: npt.NDArray[np.int64]
    first_tile: int

    @property
    def num_tiles(self) -> int:
        return self.start // TILE + 1 - self.first_tile


@dataclasses.dataclass(frozen=True, slots=True)
class _Tile:
    """One tile of each span: `blocks` `[num_active * blocks a tile]` of a group's `num_active` first spans.

    Those before `first_partial` see all of it. For the others `hidden` is true where a key comes after the query or
    before its window, `[num_active - first_partial, num_queries, 1, TILE]`.
    """

    num_active: int
    first_partial: int
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
    """Index tensors of one step: the rows' `slots` in the cache `[num_tokens]`, and for each window that some layer
    has what each group reads."""

    slots: torch.Tensor
    groups: Mapping[int | None, tuple[_Group, ...]]


class TorchAttention:
    """Owns nothing but a reference to the KV cache; called by the engine's thread.

    A context is read in fixed tiles of `TILE` positions whose partial results are combined as they come: online
    softmax (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", algorithm 1), in fp32. Tiles begin at the
    same positions, have the same size and are combined in the same order for a decode row and for a row of any prefill
    chunk, and a masked position's weight is exactly zero, so a row's result does not depend on company, chunking or
    preemption (He et al. 2025, "Defeating Nondeterminism in LLM Inference"). Query heads that share keys are rows of
    one matrix product, so that keys are read once for all of them. Tiles that lie wholly before the windows of a
    span's rows are not read; one that lies before some of them weighs exactly nothing there.
    """

    name = "torch"

    def __init__(self, cache: KVCache, *, num_heads: int, layers: Sequence[LayerAttention]) -> None:
        self._cache = cache
        self._num_heads = num_heads
        self._layers = tuple(layers)
        self._windows = frozenset(layer.window for layer in layers)

    def prepare(self, chunks: Sequence[AttentionChunk]) -> TorchBatch:
        """Where the step's rows are stored and which blocks they read.

        Single rows form one group. A longer chunk is cut where tiles begin, each part a group of its own: this bounds
        the score matrix, and no part reads a tile past its last row.
        """
        tables = [np.asarray(chunk.block_table, dtype=np.int64) for chunk in chunks]
        slots = [_slots(chunk, table) for chunk, table in zip(chunks, tables, strict=True)]
        groups = {window: self._groups(chunks, tables, window) for window in self._windows}
        return TorchBatch(slots=self._to_device(np.concatenate(slots)), groups=groups)

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, batch: TorchBatch
    ) -> torch.Tensor:
        """As `AttentionBackend.attend`."""
        self._cache.write(layer, batch.slots, keys, values)
        return self.attend_stored(layer, queries, batch=batch)

    def attend_stored(self, layer: int, queries: torch.Tensor, *, batch: TorchBatch) -> torch.Tensor:
        """As `AttentionBackend.attend_stored`."""
        attended = torch.empty_like(queries)
        for group in batch.groups[self._layers[layer].window]:
            attended[group.rows] = self._attend_group(layer, queries[group.rows], group)
        return attended.flatten(1)

    def _attend_group(self, layer: int, queries: torch.Tensor, group: _Group) -> torch.Tensor:
        """`queries` and the result are `[num_spans * num_queries, num_heads, head_dim]`, in the order of `rows`."""
        keys, values = self._cache.layer(layer)
        how = self._layers[layer]
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
            scores = torch.bmm(active, tile_keys.transpose(1, 2)).float().mul_(how.scale)
            if how.softcap is not None:
                scores.div_(how.softcap).tanh_().mul_(how.softcap)
            scores = scores.view(num_kv_heads, tile.num_active, group.num_queries, shared, TILE)
            scores[:, tile.first_partial :].masked_fill_(tile.hidden, -math.inf)
            running = _combine(running, scores.flatten(2, 3), tile_values)
        assert running is not None, "every row sees at least its own position"
        result = running.weighted.div_(running.weights).to(queries.dtype)
        result = result.view(num_kv_heads, -1, shared, head_dim).transpose(0, 1)
        return result.reshape(-1, self._num_heads, head_dim)

    def _groups(
        self, chunks: Sequence[AttentionChunk], tables: Sequence[npt.NDArray[np.int64]], window: int | None
    ) -> tuple[_Group, ...]:
        singles: list[_Span] = []
        groups: list[_Group] = []
        for chunk, table in zip(chunks, tables, strict=True):
            if chunk.num_tokens == 1:
                singles.append(_Span(chunk.first_row, chunk.start, table, _first_tile(chunk.start, window)))
                continue
            for start, end in _cut_at_tiles(chunk.start, chunk.end):
                span = _Span(chunk.first_row + start - chunk.start, start, table, _first_tile(start, window))
                groups.append(self._group([span], end - start, window))
        if singles:
            groups.append(self._group(sorted(singles, key=lambda span: -span.num_tiles), 1, window))
        return tuple(groups)

    def _group(self, spans: Sequence[_Span], num_queries: int, window: int | None) -> _Group:
        rows = np.asarray([span.first_row for span in spans])[:, None] + np.arange(num_queries)
        num_tiles = np.asarray([span.num_tiles for span in spans])
        first_tiles = np.asarray([span.first_tile for span in spans])
        tables = np.zeros((len(spans), num_tiles[0] * _TILE_BLOCKS), dtype=np.int64)
        for padded, span in zip(tables, spans, strict=True):
            used = span.table[span.first_tile * _TILE_BLOCKS :][: len(padded)]
            padded[: len(used)] = used
        # Positions of all queries `[num_spans, num_queries]`, counted from where their span's first tile begins.
        positions = np.asarray([span.start for span in spans])[:, None] + np.arange(num_queries)
        positions -= first_tiles[:, None] * TILE
        tiles = []
        for index in range(num_tiles[0]):
            num_active = int((num_tiles > index).sum())
            blocks = tables[:num_active, index * _TILE_BLOCKS : (index + 1) * _TILE_BLOCKS]
            first_partial, hidden = _hidden(positions[:num_active] - index * TILE, window)
            tiles.append(_Tile(num_active, first_partial, self._to_device(blocks.reshape(-1)), self._to_device(hidden)))
        return _Group(len(spans), num_queries, self._to_device(rows.reshape(-1)), tuple(tiles))

    def _to_device(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return upload(np.ascontiguousarray(array), device=self._cache.device)[0]


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
    # A row that sees nothing of this tile: any finite peak weighs its positions exactly nothing.
    peak.clamp_(min=_LOWEST)
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


def _first_tile(start: int, window: int | None) -> int:
    """The first tile that a row at position `start` sees any of."""
    return 0 if window is None else max(0, start - window + 1) // TILE


def _hidden(positions: npt.NDArray[np.int64], window: int | None) -> tuple[int, npt.NDArray[np.bool_]]:
    """What queries at `positions` `[num_spans, num_queries]`, counted from the beginning of a tile, do not see of it:
    the first span of which any does not see all, and for that and those behind it `[…, num_queries, 1, TILE]`."""
    offsets = np.arange(TILE)
    last_seen = positions[:, :, None, None]
    hidden: npt.NDArray[np.bool_] = offsets > last_seen
    if window is not None:
        hidden |= offsets <= last_seen - window
    partial: npt.NDArray[np.bool_] = np.logical_or.reduce(hidden, axis=(1, 2, 3))
    first_partial = int(partial.argmax()) if partial.any() else len(partial)
    return first_partial, hidden[first_partial:]
