"""How much of attention one program computes at once, and how a context is split among programs.

A table rather than a search when serving begins: a search would time kernels while others wait, could not run while a
graph is captured, and might find another shape, hence other last bits, from one start to the next.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

_MIN_ROWS = 16
"""Rows of the smallest matrix product that tensor cores compute."""
_MIN_SPLIT = 256
"""Positions that a part of a context has at least: its sums are then a few hundredths of what it reads."""
_LARGE_SHARED_MEMORY = 200 << 10
"""Bytes that a program may use of a data centre's GPU since Hopper, whose tensor cores also spare registers; an A100
has 163 KiB, smaller ones have about 100 KiB."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A program computes `rows` packed rows against `tile` positions at a time, with `num_warps` warps.

    Of `num_stages` a tile takes two, since its block numbers must be there before its keys can be asked for: with 3 one
    tile is on its way while another is computed, with 5 two are.
    """

    rows: int
    tile: int
    num_warps: int
    num_stages: int


def decode_shape(*, head_dim: int, num_shared: int, dtype: torch.dtype, shared_memory: int) -> Shape:
    """For rows that decode: `num_shared` query heads a key head are few rows, so all that counts is how fast tiles of
    keys and values come. A tile of both is 32 KiB, about what bandwidth times latency asks for on each processor, and
    there is room for several programs."""
    rows = _padded_rows(num_shared)
    width = _padded_dim(head_dim)
    is_large = shared_memory >= _LARGE_SHARED_MEMORY
    if dtype.itemsize > 2:
        return Shape(rows, tile=32, num_warps=4, num_stages=3 if is_large or width <= 128 else 1)
    return Shape(rows, tile=min(128, max(32, 8192 // width)), num_warps=4, num_stages=5 if is_large else 3)


def chunk_shape(*, head_dim: int, num_shared: int, dtype: torch.dtype, shared_memory: int) -> Shape:
    """For prompts' chunks, where products count: many rows a program, so that each tile of keys and values serves many.

    In fp32, which tensor cores do not compute exactly and which is there to check others by, few.
    """
    width = _padded_dim(head_dim)
    padded = _padded_rows(num_shared)
    is_large = shared_memory >= _LARGE_SHARED_MEMORY
    if dtype.itemsize > 2:
        return Shape(max(32, padded) if width <= 64 else padded, tile=32, num_warps=4, num_stages=1)
    if width <= 64:
        return Shape(max(128, padded), tile=64, num_warps=4 if is_large else 8, num_stages=5 if is_large else 3)
    if width <= 128:
        return Shape(max(128, padded), tile=64 if is_large else 32, num_warps=8, num_stages=5 if is_large else 3)
    return Shape(max(64, padded), tile=32, num_warps=4 if is_large else 8, num_stages=3 if is_large else 1)


def max_splits(*, num_processors: int, num_kv_heads: int) -> int:
    """Parts that a context is split into at most: as many as give every processor two programs where one row alone is
    computed; a power of two from 8 to 64."""
    wanted = max(1, 2 * num_processors // num_kv_heads)
    return max(8, min(64, 1 << (wanted.bit_length() - 1)))


def min_tiles(tile: int) -> int:
    """Tiles of `tile` positions that a part has at least."""
    return max(1, _MIN_SPLIT // tile)


def most_parts(lengths: npt.NDArray[np.int32], *, window: int | None, tile: int, num_splits: int) -> int:
    """The parts of that of the contexts of `lengths` which has most, as the kernels count them; 0 for none."""
    if not len(lengths):
        return 0
    first = np.maximum(lengths - (lengths if window is None else window), 0) // tile
    num_tiles = -(-lengths // tile) - first
    tiles_a_part = np.maximum(-(-num_tiles // num_splits), min_tiles(tile))
    return int((-(-num_tiles // tiles_a_part)).max())


def num_split_programs(*, num_rows: int, num_kv_heads: int, num_splits: int, num_processors: int) -> int:
    """Programs that share the parts of one row and key head, where contexts have up to `num_splits`.

    A program for every part while rows are few. Where rows alone keep all processors busy a few for each, so that one
    long context does not take longest, without thousands of programs that find nothing to do.
    """
    filling = -(-8 * num_processors // max(1, num_rows * num_kv_heads))
    return min(num_splits, max(4, filling))


def _padded_rows(num_shared: int) -> int:
    return max(_MIN_ROWS, 1 << (num_shared - 1).bit_length())


def _padded_dim(head_dim: int) -> int:
    return max(_MIN_ROWS, 1 << (head_dim - 1).bit_length())
