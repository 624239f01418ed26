"""Blocks of the KV cache: which are free, how many sequences hold each of the others, and which are kept for reuse."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Owns the state of `num_blocks` blocks; used by the engine's thread only.

    A block is free, in use (held by one live sequence or more) or cached (held by none, its content kept), and free +
    in use + cached = total at any time. Cached blocks are given away when no free one is left, the one that was let go
    the longest ago first; `on_evict` is told of each before it is. Paged KV memory: Kwon et al. 2023, "Efficient Memory
    Management for Large Language Model Serving with PagedAttention", section 4.
    """

    def __init__(self, num_blocks: int, *, on_evict: Callable[[int], None] | None = None) -> None:
        assert num_blocks > 0, "a pool without blocks can serve nothing"
        # Taken from the end: the block freed last is the one most likely still in a processor's cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._num_holders = [0] * num_blocks
        self._is_kept = bytearray(num_blocks)
        self._on_evict = on_evict

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._num_holders)

    @property
    def num_free(self) -> int:
        """Blocks with nothing in them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but whose content is kept: `allocate` gives them when no free one is left."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that live sequences hold, each counted once."""
        return len(self._num_holders) - len(self._free) - len(self._cached)

    def num_holders(self, block: int) -> int:
        """How many live sequences hold `block`."""
        return self._num_holders[block]

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one holder each, or None and no change where fewer are free or cached."""
        assert count >= 0, f"cannot allocate {count} blocks"
        if count > len(self._free) + len(self._cached):
            return None
        if count == 0:
            return []
        while len(self._free) < count:
            self._evict()
        blocks = self._free[-count:]
        del self._free[-count:]
        for block in blocks:
            assert self._num_holders[block] == 0, f"block {block} was free and held at once"
            self._num_holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of `blocks`, which are in use or cached."""
        for block in blocks:
            if self._num_holders[block] == 0:
                assert block in self._cached, f"block {block} is shared but nobody holds it"
                del self._cached[block]
            self._num_holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Take one holder from each of `blocks`, in this order; those left with none are free, or cached if kept."""
        for block in blocks:
            assert self._num_holders[block] > 0, f"block {block} is released but nobody holds it"
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                if self._is_kept[block]:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """Let the content of a block that is in use stay when its last holder lets go."""
        assert self._num_holders[block] > 0, f"block {block} is to be kept but nobody holds it"
        self._is_kept[block] = 1

    def keep_none(self) -> None:
        """Keep no content any more: cached blocks are free, without a word to `on_evict`."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._is_kept = bytearray(len(self._num_holders))

    def check_invariants(self) -> None:
        """Raise AssertionError where the books do not add up. Linear in the number of blocks: for tests."""
        assert all(count >= 0 for count in self._num_holders), "a block has a negative number of holders"
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert not self._cached.keys() & set(self._free), "a block is free and cached at once"
        for state, blocks in (("free", self._free), ("cached", self._cached)):
            assert all(self._num_holders[block] == 0 for block in blocks), f"a {state} block is held"
        assert all(self._is_kept[block] for block in self._cached), "a block is cached that is not to be kept"
        assert not any(self._is_kept[block] for block in self._free), "a block is free that is to be kept"
        num_held = sum(count > 0 for count in self._num_holders)
        assert self.num_used == num_held, f"{self.num_used} blocks counted in use, {num_held} held"
        assert self.num_free + self.num_used + self.num_cached == self.num_blocks, "blocks went missing"

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        self._is_kept[block] = 0
        if self._on_evict is not None:
            self._on_evict(block)
        self._free.append(block)
