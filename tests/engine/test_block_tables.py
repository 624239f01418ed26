"""Block tables become one array, whatever became of their lists since the step before."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from serving.engine.attention import block_tables
from serving.engine.attention.base import AttentionChunk
from serving.engine.attention.block_tables import BlockTables
from serving.engine.kv_cache import BLOCK_SIZE


def _chunks(tables: Sequence[Sequence[int]], *, num_spare: int = 0) -> list[AttentionChunk]:
    return [
        AttentionChunk(row, 1, (len(table) - num_spare) * BLOCK_SIZE - 1, table) for row, table in enumerate(tables)
    ]


def test_tables_are_those_of_this_step_however_they_were_changed() -> None:
    """Grown, cut, given other blocks in the same places, replaced by new lists, in another order, or gone."""
    chance = random.Random(4)
    tables = [[chance.randrange(10_000) for _ in range(chance.randint(1, 9))] for _ in range(12)]
    joined = BlockTables()
    for _ in range(300):
        table = chance.choice(tables)
        match chance.randrange(6):
            case 0:
                table.append(chance.randrange(10_000))
            case 1 if len(table) > 1:
                del table[-1]
            case 2:
                table[chance.randrange(len(table))] = chance.randrange(10_000)
            case 3:
                tables.remove(table)
                del table
                tables.append([chance.randrange(10_000) for _ in range(chance.randint(1, 9))])
            case 4:
                chance.shuffle(tables)
        given = chance.sample(tables, chance.randint(1, len(tables)))
        blocks, offsets = joined.join(_chunks(given))
        assert blocks.tolist() == [block for table in given for block in table]
        assert offsets == [sum(map(len, given[:index])) for index in range(len(given))]


def test_blocks_for_tokens_to_come_are_left_out() -> None:
    joined = BlockTables()
    tables = [[1, 2, 3], [4, 5]]
    assert joined.join(_chunks(tables))[0].tolist() == [1, 2, 3, 4, 5]
    blocks, offsets = joined.join(_chunks(tables, num_spare=1))
    assert (blocks.tolist(), offsets) == ([1, 2, 4], [0, 2])


def test_only_what_has_changed_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def reading(kind: str, numbers: Sequence[int]) -> array[int]:
        read.append(list(numbers))
        return array(kind, numbers)

    monkeypatch.setattr(block_tables, "array", reading)
    joined = BlockTables()
    tables = [[1, 2], [3, 4], [5, 6]]
    joined.join(_chunks(tables))
    read.clear()
    tables[1].append(7)
    joined.join(_chunks(tables))
    assert read == [[3, 4, 7]]
    joined.join(_chunks(tables[:1]))
    read.clear()
    joined.join(_chunks(tables))
    assert read == [[3, 4, 7], [5, 6]], "what the last step lacked is not kept"
