"""Sequences' block tables, from lists to one array: few of them change from one step to the next."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from serving.engine.attention.base import AttentionChunk
from serving.engine.kv_cache import BLOCK_SIZE

_Ints = npt.NDArray[np.int32]


class BlockTables:
    """Owns the arrays that the block tables of the last step were made into; on the engine's thread.

    A table that equals what it was is not made into an array again: that takes several times as long as to compare it,
    whose numbers are the very same objects. Nobody has to tell how a list was changed, or whether another one has its
    place.
    """

    def __init__(self) -> None:
        self._read: dict[int, tuple[list[int], _Ints]] = {}
        """Copies of tables and their arrays, by the tables' identity."""

    def join(self, chunks: Sequence[AttentionChunk]) -> tuple[_Ints, list[int]]:
        """The block tables of all chunks one after another, int32, and where in them each chunk's begins: the blocks of
        positions up to the last row's, though a sequence may hold more, for tokens to come."""
        before, self._read = self._read, {}
        tables = []
        for chunk in chunks:
            table, num_read = chunk.block_table, -(-chunk.end // BLOCK_SIZE)
            entry = before.get(id(table))
            if entry is None or entry[0] != table:
                # An array takes a list's numbers about twice as fast as NumPy does.
                entry = list(table), np.frombuffer(array("i", table), dtype=np.int32)
            self._read[id(table)] = entry
            tables.append(entry[1] if len(table) == num_read else entry[1][:num_read])
        offsets = list(itertools.accumulate((len(table) for table in tables[:-1]), initial=0))
        return np.concatenate(tables), offsets
