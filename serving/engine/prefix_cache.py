"""Finds blocks that already hold the keys and values with which a context begins."""

from __future__ import annotations

import struct
from collections.abc import Sequence as Seq
from typing import NamedTuple

from serving.engine.block_pool import BlockPool


class Namespace(NamedTuple):
    """Whose contexts share blocks: nobody else's ever do. `is_long`: the keys and values are those that the model has
    for sequences which may grow long (see `DividedRunner`)."""

    tenant: str
    salt: str
    is_long: bool = False


class CachedBlock:
    """A full block that can be found again, by its key. Owned by the `PrefixCache`.

    `block` is None once the content is gone.
    """

    __slots__ = ("block", "key")

    def __init__(self, key: Key, block: int) -> None:
        self.key = key
        self.block: int | None = block


Key = tuple[CachedBlock | Namespace, bytes]
"""What comes before a block, and its tokens."""


class Chain:
    """The cached blocks that a context begins with, in its order; owned by a sequence, changed by the `PrefixCache`."""

    __slots__ = ("blocks", "namespace")

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.blocks: list[CachedBlock] = []


class PrefixCache:
    """Owns the index of the blocks whose content can be reused; used by the engine's thread only.

    A full block's key is what comes before it (the block there, or whose context it is) and its tokens, so that one
    look-up a block finds the longest beginning of a context that is cached. Keys are compared whole: that two have one
    hash does no harm.

    Who holds a block of a chain holds all before it. So what nobody holds is let go, and evicted, from a chain's end
    backwards, and nothing is ever known behind a block that is lost. Chained keys: vLLM's "Automatic Prefix Caching";
    eviction from the leaves: Zheng et al. 2024, "SGLang", section 3 (RadixAttention).
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, on_evict=self._forget)
        self._block_size = block_size
        self._pack = struct.Struct(f"{block_size}q").pack
        self._by_key: dict[Key, CachedBlock] = {}
        self._by_block: list[CachedBlock | None] = [None] * num_blocks

    def find(self, chain: Chain, token_ids: Seq[int], *, most: int) -> list[int]:
        """The longest beginning of `token_ids` that is cached, as blocks in their order, at most `most`.

        Brings `chain` up to date, so that it has these blocks or more, and takes hold of none of them. Costs one
        look-up, and one more for each block that was not found the last time.
        """
        known = chain.blocks
        while known and known[-1].block is None:
            known.pop()
        while len(known) < most and (found := self._by_key.get(self._next_key(chain, token_ids))) is not None:
            known.append(found)
        return [_block(entry) for entry in known[:most]]

    def register(self, chain: Chain, token_ids: Seq[int], block_table: list[int], *, count: int) -> None:
        """Make the first `count` blocks of a running sequence findable: they are full and computed.

        Where another block holds the same already, that one takes its place in `block_table`, and its own is let go.
        """
        known = chain.blocks
        for index in range(len(known), count):
            key, block = self._next_key(chain, token_ids), block_table[index]
            found = self._by_key.get(key)
            if found is None:
                found = self._by_key[key] = self._by_block[block] = CachedBlock(key, block)
                self.pool.keep(block)
            elif found.block != block:
                twin = _block(found)
                self.pool.share([twin])
                self.pool.release([block])
                block_table[index] = twin
            known.append(found)

    def knows(self, block: int) -> bool:
        """Whether the block's content can be found, so that nobody may write to it."""
        return self._by_block[block] is not None

    def clear(self) -> None:
        """Forget all. Blocks in use stay so, and are free when they are let go."""
        for entry in self._by_key.values():
            entry.block = None
        self._by_key.clear()
        self._by_block = [None] * len(self._by_block)
        self.pool.keep_none()

    def check_invariants(self) -> None:
        """Raise AssertionError where the index and the blocks contradict each other. Linear in all: for tests."""
        self.pool.check_invariants()
        num_known = sum(entry is not None for entry in self._by_block)
        assert num_known == len(self._by_key), "a block is known twice, or cannot be found"
        for key, entry in self._by_key.items():
            assert entry.key == key, "a block is known by another's key"
            block = _block(entry)
            assert self._by_block[block] is entry, f"two contents are said to be in block {block}"
            before = key[0]
            if isinstance(before, CachedBlock):
                assert before.block is not None, f"block {block} is known behind one that is lost"
                assert self.pool.num_holders(before.block) >= self.pool.num_holders(block), (
                    f"block {block} has a holder that does not hold what comes before"
                )

    def _next_key(self, chain: Chain, token_ids: Seq[int]) -> Key:
        """The key of the block that comes after `chain` in this context."""
        known, size = chain.blocks, self._block_size
        if not known:
            return block_key(chain.namespace, self._pack(*token_ids[:size]))
        begin = len(known) * size
        return block_key(known[-1], self._pack(*token_ids[begin : begin + size]))

    def _forget(self, block: int) -> None:
        entry, self._by_block[block] = self._by_block[block], None
        assert entry is not None, f"block {block} was kept but is not known"
        del self._by_key[entry.key]
        entry.block = None


def block_key(before: CachedBlock | Namespace, tokens: bytes) -> Key:
    """The key of a block with these tokens that comes after `before`. Strings of bytes are hashed with a secret."""
    return (before, tokens)


def _block(entry: CachedBlock) -> int:
    assert entry.block is not None, "a block that is lost was taken for a cached one"
    return entry.block
