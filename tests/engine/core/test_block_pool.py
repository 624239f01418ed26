"""Blocks are free, held or cached, never two of these, whatever order they come and go in."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.engine.block_pool import BlockPool


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(4)
    held = pool.allocate(3)
    assert held is not None
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(1) is not None
    assert pool.num_free == 0


def test_allocating_none_changes_nothing() -> None:
    pool = BlockPool(2)
    assert pool.allocate(0) == []
    assert pool.num_free == 2


def test_a_shared_block_is_free_only_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.share(blocks)
    pool.release(blocks)
    assert (pool.num_used, pool.num_free) == (1, 1)
    pool.release(blocks)
    assert (pool.num_used, pool.num_free) == (0, 2)


def test_releasing_twice_is_an_error_at_once() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(AssertionError, match="nobody holds it"):
        pool.release(blocks[:1])


def test_sharing_a_free_block_is_an_error_at_once() -> None:
    with pytest.raises(AssertionError, match="nobody holds it"):
        BlockPool(1).share([0])


class BlockPoolMachine(RuleBasedStateMachine):
    """Holders come, share and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(13)
        self.holdings: list[list[int]] = []

    @rule(count=st.integers(0, 15))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > free)
        if blocks is None:
            assert self.pool.num_free == free
            return
        assert len(set(blocks)) == count
        assert not set(blocks) & {block for holding in self.holdings for block in holding}
        self.holdings.append(blocks)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        holding = data.draw(st.sampled_from(self.holdings))
        self.pool.share(holding)
        self.holdings.append(list(holding))

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1))))

    @invariant()
    def books_add_up(self) -> None:
        self.pool.check_invariants()
        held = {block for holding in self.holdings for block in holding}
        assert self.pool.num_used == len(held)
        assert self.pool.num_free == 13 - len(held)


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
