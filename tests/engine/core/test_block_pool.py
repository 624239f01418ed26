"""Blocks are free, held or cached, never two of these, whatever order they come and go in."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.engine.block_pool import BlockPool
from tests.engine.core.machines import run_machine


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


def test_keeping_a_block_that_nobody_holds_is_an_error_at_once() -> None:
    with pytest.raises(AssertionError, match="nobody holds it"):
        BlockPool(1).keep(0)


def test_a_kept_block_is_cached_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(3)
    block, other = pool.allocate(2) or []
    pool.keep(block)
    pool.release([block, other])
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 1, 2)
    pool.share([block])
    assert (pool.num_used, pool.num_cached, pool.num_free) == (1, 0, 2)


def test_free_blocks_are_given_before_cached_ones_and_those_longest_unused_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, on_evict=evicted.append)
    first, second, third, fourth = pool.allocate(4) or []
    for block in (first, second, third):
        pool.keep(block)
    pool.release([second, fourth, first, third])
    assert pool.allocate(1) == [fourth]
    pool.share([second])
    pool.release([second])
    assert evicted == []
    assert pool.allocate(1) == [first]
    assert sorted(pool.allocate(2) or []) == sorted([second, third])
    assert evicted == [first, third, second]


def test_nothing_is_evicted_where_too_few_blocks_are_left() -> None:
    evicted: list[int] = []
    pool = BlockPool(3, on_evict=evicted.append)
    block, _ = pool.allocate(2) or []
    pool.keep(block)
    pool.release([block])
    assert pool.allocate(3) is None
    assert (evicted, pool.num_cached) == ([], 1)


def test_an_evicted_block_is_kept_no_more() -> None:
    pool = BlockPool(1)
    pool.keep((pool.allocate(1) or [])[0])
    pool.release([0])
    pool.release(pool.allocate(1) or [])
    assert (pool.num_cached, pool.num_free) == (0, 1)


def test_keeping_none_frees_the_cached_and_leaves_the_held() -> None:
    evicted: list[int] = []
    pool = BlockPool(3, on_evict=evicted.append)
    gone, held = pool.allocate(2) or []
    for block in (gone, held):
        pool.keep(block)
    pool.release([gone])
    pool.keep_none()
    assert (pool.num_used, pool.num_cached, pool.num_free) == (1, 0, 2)
    pool.release([held])
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 0, 3)
    assert evicted == []


class BlockPoolMachine(RuleBasedStateMachine):
    """Holders come, share and go in any order, and some content is kept after them."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: list[int] = []
        """As they would be evicted."""
        self.pool = BlockPool(13, on_evict=self.be_told_of_eviction)
        self.holdings: list[list[int]] = []
        self.kept: set[int] = set()

    def be_told_of_eviction(self, block: int) -> None:
        assert block == self.cached.pop(0)
        self.kept.remove(block)

    @property
    def held(self) -> set[int]:
        return {block for holding in self.holdings for block in holding}

    @rule(count=st.integers(0, 15))
    def allocate(self, count: int) -> None:
        free, cached = self.pool.num_free, self.pool.num_cached
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > free + cached)
        if blocks is None:
            assert (self.pool.num_free, self.pool.num_cached) == (free, cached)
            return
        assert self.pool.num_cached == cached - max(0, count - free)
        assert len(set(blocks)) == count
        assert not set(blocks) & (self.held | self.kept)
        self.holdings.append(blocks)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        holding = data.draw(st.sampled_from(self.holdings))
        self.pool.share(holding)
        self.holdings.append(list(holding))

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def use_what_is_cached(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.cached), unique=True, min_size=1))
        self.pool.share(blocks)
        self.cached = [block for block in self.cached if block not in blocks]
        self.holdings.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.keep(block)
        self.kept.add(block)

    @rule(chance=st.integers(0, 4))
    def keep_none(self, chance: int) -> None:
        if chance == 4:
            self.pool.keep_none()
            self.kept.clear()
            self.cached.clear()

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holding = self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1)))
        self.pool.release(holding)
        self.cached += [block for block in holding if block not in self.held and block in self.kept]

    @invariant()
    def books_add_up(self) -> None:
        self.pool.check_invariants()
        assert self.pool.num_used == len(self.held)
        assert self.pool.num_cached == len(self.cached)
        assert self.pool.num_free == 13 - len(self.held) - len(self.cached)


def test_any_course_of_events_keeps_the_books() -> None:
    assert run_machine(BlockPoolMachine, max_examples=60, num_steps=40) > 1000


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_any_course_of_a_hundred_thousand_steps_keeps_the_books() -> None:
    assert run_machine(BlockPoolMachine, max_examples=1200, num_steps=100) >= 100_000
