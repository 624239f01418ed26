"""Blocks of the KV cache: which are free and how many sequences hold each of the others."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Owns the free list and the reference counts of `num_blocks` blocks; used by the engine's thread only.

    A block is free, in use (held by one live sequence or more) or cached (held by none, its content kept). Nothing is
    cached so far, and free + in use + cached = total at any time. Paged KV memory: Kwon et al. 2023, "Efficient Memory
    Management for Large Language Model Serving with PagedAttention", section 4.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, "a pool without blocks can serve nothing"
        # Taken from the end: the block freed last is the one most likely still in a processor's cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_holders = [0] * num_blocks

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._num_holders)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but whose content is kept."""
        return 0

    @property
    def num_used(self) -> int:
        """Blocks that live sequences hold, each counted once."""
        return self.num_blocks - self.num_free - self.num_cached

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one holder each, or None and no change where fewer are free."""
        assert count >= 0, f"cannot allocate {count} blocks"
        if count > len(self._free):
            return None
        if count == 0:
            return []
        blocks = self._free[-count:]
        del self._free[-count:]
        for block in blocks:
            assert self._num_holders[block] == 0, f"block {block} was free and held at once"
            self._num_holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of `blocks`, which are in use."""
        for block in blocks:
            assert self._num_holders[block] > 0, f"block {block} is shared but nobody holds it"
            self._num_holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Take one holder from each of `blocks`; those left with none are free."""
        for block in blocks:
            assert self._num_holders[block] > 0, f"block {block} is released but nobody holds it"
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self._free.append(block)

    def check_invariants(self) -> None:
        """Raise AssertionError where the books do not add up. Linear in the number of blocks: for tests."""
        assert all(count >= 0 for count in self._num_holders), "a block has a negative number of holders"
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert all(self._num_holders[block] == 0 for block in self._free), "a free block is held"
        num_held = sum(count > 0 for count in self._num_holders)
        assert self.num_used == num_held, f"{self.num_used} blocks counted in use, {num_held} held"
        assert self.num_free + self.num_used + self.num_cached == self.num_blocks, "blocks went missing"
