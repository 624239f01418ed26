"""Paged attention by Triton kernels, for GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from triton import knobs

from serving.engine.attention.base import AttentionChunk, LayerAttention
from serving.engine.attention.block_tables import BlockTables
from serving.engine.kernels.gpu import attention_shapes as shapes
from serving.engine.kernels.gpu.attention import DecodeRows, Partials, Splitting, attend_rows
from serving.engine.kernels.gpu.attention_chunks import attend_chunks
from serving.engine.kernels.gpu.store import store
from serving.engine.kv_cache import BLOCK_SIZE, KVCache
from serving.engine.transfers import upload, upload_into

_Ints = npt.NDArray[np.int32]

_SECTION = 32
"""Parts of a static batch begin at multiples of so many numbers: kernels are compiled for aligned ones."""
_INTERPRETED_PROCESSORS = 4
_INTERPRETED_SHARED_MEMORY = 227 << 10
"""Without a device programs are shaped as for a large one."""


@dataclasses.dataclass(frozen=True, slots=True)
class TritonBatch:
    """A step's indices on the device, all int32: the rows' `slots` `[num_tokens]` (below 0: not stored), rows that
    decode, the `tiles` `[num_tiles, 4]` that prompts' chunks are cut into (see `attend_chunks`), and the `blocks` of
    all sequences. How contexts are split is said for each window that some layer has."""

    slots: torch.Tensor
    decoding: DecodeRows
    tiles: torch.Tensor
    blocks: torch.Tensor
    splitting: Mapping[int | None, Splitting]
    partials: Partials


@dataclasses.dataclass(frozen=True, slots=True)
class StaticBatch:
    """Owns a batch of rows that decode whose tensors stay where they are, on the engine's thread:
    `TritonAttention.fill` changes what they hold, and a graph captured over `batch` computes that."""

    batch: TritonBatch
    indices: torch.Tensor
    """What `batch` consists of views of: slots, lengths and offsets, `max_rows` each in its section, then blocks."""
    max_rows: int
    max_blocks: int


class TritonAttention:
    """Owns nothing but a reference to the KV cache and the last step's block tables; called by the engine's thread.

    A row's result depends on nothing but its own sequence, bit for bit: contexts are read in tiles that begin at the
    same positions for every row, a long one is split by its length alone, and the parts are merged in their order.
    Prompts' rows are the same however a prompt is cut, and rows that decode the same whatever else decodes, drafted
    tokens of the same sequence included; but the kernels for the two round differently, so that a sequence that was
    preempted, and is computed again as a prompt, continues from keys that are equal only up to rounding.
    """

    name = "triton"

    def __init__(self, cache: KVCache, *, num_heads: int, layers: Sequence[LayerAttention]) -> None:
        """Raises `ValueError` for a cache that lies where no Triton kernel can run."""
        is_cuda = cache.device.type == "cuda"
        if not is_cuda and not knobs.runtime.interpret:
            raise ValueError(f"attention backend triton needs a GPU; the model is on device {cache.device}")
        self._cache = cache
        self._num_heads = num_heads
        self._layers = tuple(layers)
        self._windows = frozenset(layer.window for layer in layers)
        num_shared = num_heads // cache.num_kv_heads
        self._num_processors, shared_memory = _INTERPRETED_PROCESSORS, _INTERPRETED_SHARED_MEMORY
        if is_cuda:
            properties = torch.cuda.get_device_properties(cache.device)
            self._num_processors = properties.multi_processor_count
            shared_memory = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
        about = {"head_dim": cache.head_dim, "num_shared": num_shared, "shared_memory": shared_memory}
        self._decode_shape = shapes.decode_shape(**about, dtype=cache.dtype)
        self._chunk_shape = shapes.chunk_shape(**about, dtype=cache.dtype)
        self._rows_a_tile = self._chunk_shape.rows // num_shared
        self._tables = BlockTables()
        self._max_splits = shapes.max_splits(num_processors=self._num_processors, num_kv_heads=cache.num_kv_heads)

    def prepare(self, chunks: Sequence[AttentionChunk]) -> TritonBatch:
        """A step's indices, on their way to the device in one copy that is not waited for."""
        blocks, offsets = self._tables.join(chunks)
        rows, lengths, row_offsets = _decode_rows(chunks, offsets)
        slots = _slots(chunks, blocks, offsets)
        indices = (slots, rows, lengths, row_offsets, self._tiles(chunks, offsets), blocks)
        slots_there, *decoding, tiles, blocks_there = upload(*indices, device=self._cache.device)
        splitting = self._splitting(lengths, num_rows=len(rows))
        return TritonBatch(
            slots=slots_there,
            decoding=DecodeRows(*decoding),
            tiles=tiles,
            blocks=blocks_there,
            splitting=splitting,
            partials=self._partials(len(rows), splitting),
        )

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, batch: TritonBatch
    ) -> torch.Tensor:
        """As `AttentionBackend.attend`."""
        store(keys, values, batch.slots, cached=self._cache.layer(layer))
        return self.attend_stored(layer, queries, batch=batch)

    def attend_stored(self, layer: int, queries: torch.Tensor, *, batch: TritonBatch) -> torch.Tensor:
        """As `AttentionBackend.attend_stored`; rows that are padding come to zeros."""
        attended = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        cached, how = self._cache.layer(layer), self._layers[layer]
        if len(batch.decoding.rows):
            attend_rows(
                queries,
                attended,
                cached=cached,
                decoding=batch.decoding,
                blocks=batch.blocks,
                how=how,
                shape=self._decode_shape,
                splitting=batch.splitting[how.window],
                partials=batch.partials,
            )
        if len(batch.tiles):
            attend_chunks(
                queries,
                attended,
                cached=cached,
                tiles=batch.tiles,
                blocks=batch.blocks,
                how=how,
                shape=self._chunk_shape,
            )
        return attended.flatten(1)

    def static_batch(self, max_rows: int, max_blocks: int) -> StaticBatch:
        """A batch of `max_rows` rows that decode, all padding until it is filled, whose contexts have at most
        `max_blocks` blocks each. Takes the memory that it needs at once, that for the parts of split contexts too."""
        section = _padded(max_rows)
        indices = torch.zeros(3 * section + max_rows * max_blocks, dtype=torch.int32, device=self._cache.device)
        slots, lengths, offsets = (indices[begin : begin + max_rows] for begin in range(0, 3 * section, section))
        slots.fill_(-1)
        rows = torch.arange(max_rows, dtype=torch.int32, device=self._cache.device)
        # Of any length: a longer context may have fewer parts than a shorter one.
        lengths_to_come = np.arange(1, max_blocks * BLOCK_SIZE + 1, dtype=np.int32)
        splitting = self._splitting(lengths_to_come, num_rows=max_rows)
        batch = TritonBatch(
            slots=slots,
            decoding=DecodeRows(rows, lengths, offsets),
            tiles=indices.new_empty((0, 4)),
            blocks=indices[3 * section :],
            splitting=splitting,
            partials=self._partials(max_rows, splitting),
        )
        return StaticBatch(batch, indices, max_rows, max_blocks)

    def first_rows(self, static: StaticBatch, num_rows: int) -> TritonBatch:
        """The first `num_rows` rows of `static`, for a graph of so many: the same memory, nothing is copied."""
        batch = static.batch
        decoding = (getattr(batch.decoding, field.name)[:num_rows] for field in dataclasses.fields(DecodeRows))
        return dataclasses.replace(
            batch,
            slots=batch.slots[:num_rows],
            decoding=DecodeRows(*decoding),
            splitting={window: self._split(num_rows, split.most_parts) for window, split in batch.splitting.items()},
        )

    def fill(self, static: StaticBatch, chunks: Sequence[AttentionChunk]) -> None:
        """Let the rows of `static` be those of `chunks`, which decode and follow each other from row 0; the rows after
        them become padding. One copy, enqueued and not waited for: graphs launched before still see what was there.

        Raises `ValueError` for more rows or longer contexts than there is room for.
        """
        assert all(chunk.decodes for chunk in chunks), "a prompt's chunk has no place in a batch that decodes"
        blocks, offsets = self._tables.join(chunks)
        rows, lengths, row_offsets = _decode_rows(chunks, offsets)
        longest, max_length = int(lengths.max(initial=0)), static.max_blocks * BLOCK_SIZE
        if len(rows) > static.max_rows or longest > max_length:
            raise ValueError(
                f"a static batch of at most {static.max_rows} rows of {max_length} positions cannot hold {len(rows)} "
                f"rows of up to {longest}"
            )
        assert (rows == np.arange(len(rows))).all(), "rows do not follow each other from row 0"
        section = _padded(static.max_rows)
        indices = np.zeros(3 * section + len(blocks), dtype=np.int32)
        slots, all_lengths, all_offsets = indices[: 3 * section].reshape(3, section)
        slots[len(rows) :] = -1
        slots[: len(rows)] = _slots(chunks, blocks, offsets)
        all_lengths[: len(rows)] = lengths
        all_offsets[: len(rows)] = row_offsets
        indices[3 * section :] = blocks
        upload_into(static.indices, indices)

    def _tiles(self, chunks: Sequence[AttentionChunk], offsets: Sequence[int]) -> _Ints:
        """As `attend_chunks` wants them; those that read most come first, so that none begins when others end."""
        tiles = [
            (chunk.first_row + begin, min(self._rows_a_tile, chunk.num_tokens - begin), chunk.start + begin, offset)
            for chunk, offset in zip(chunks, offsets, strict=True)
            if not chunk.decodes
            for begin in range(0, chunk.num_tokens, self._rows_a_tile)
        ]
        tiles.sort(key=lambda tile: -tile[2])
        return np.asarray(tiles, dtype=np.int32).reshape(-1, 4)

    def _splitting(self, lengths: _Ints, *, num_rows: int) -> dict[int | None, Splitting]:
        """How each window's contexts are split in `num_rows` rows, whose lengths are among `lengths`."""
        tile, num_splits = self._decode_shape.tile, self._max_splits
        return {
            window: self._split(num_rows, shapes.most_parts(lengths, window=window, tile=tile, num_splits=num_splits))
            for window in self._windows
        }

    def _split(self, num_rows: int, most_parts: int) -> Splitting:
        num_programs = shapes.num_split_programs(
            num_rows=num_rows,
            num_kv_heads=self._cache.num_kv_heads,
            num_splits=max(1, most_parts),
            num_processors=self._num_processors,
        )
        return Splitting(self._max_splits, shapes.min_tiles(self._decode_shape.tile), num_programs, most_parts)

    def _partials(self, num_rows: int, splitting: Mapping[int | None, Splitting]) -> Partials:
        num_parts = max((split.most_parts for split in splitting.values()), default=0)
        if num_parts <= 1:
            num_rows = 0
        sizes = (num_rows, self._num_heads, num_parts)
        sums = torch.empty((*sizes, self._cache.head_dim), dtype=torch.float32, device=self._cache.device)
        return Partials(sums, sums.new_empty((*sizes, 2)))


def _decode_rows(chunks: Sequence[AttentionChunk], offsets: Sequence[int]) -> tuple[_Ints, _Ints, _Ints]:
    """Rows, lengths and offsets, as `DecodeRows` has them, of the chunks that decode."""
    found = [
        (chunk.first_row + index, chunk.start + index + 1, offset)
        for chunk, offset in zip(chunks, offsets, strict=True)
        if chunk.decodes
        for index in range(chunk.num_tokens)
    ]
    rows, lengths, row_offsets = np.ascontiguousarray(np.asarray(found, dtype=np.int32).reshape(-1, 3).T)
    return rows, lengths, row_offsets


def _slots(chunks: Sequence[AttentionChunk], blocks: _Ints, offsets: Sequence[int]) -> _Ints:
    """The slots of all rows, in the order of chunks, which is that of rows."""
    num_tokens = np.asarray([chunk.num_tokens for chunk in chunks])
    first_rows = np.asarray([chunk.first_row for chunk in chunks])
    positions = np.repeat(np.asarray([chunk.start for chunk in chunks]) - first_rows, num_tokens)
    positions += np.arange(len(positions))
    places = np.repeat(offsets, num_tokens) + positions // BLOCK_SIZE
    slots: _Ints = (blocks[places] * BLOCK_SIZE + positions % BLOCK_SIZE).astype(np.int32)
    return slots


def _padded(size: int) -> int:
    return -(-size // _SECTION) * _SECTION
