"""What is cached is found by whoever may find it, and is what it is said to be, whatever is evicted or forgotten."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.engine import prefix_cache
from serving.engine.prefix_cache import Chain, Namespace, PrefixCache
from tests.engine.core.machines import run_machine

BLOCK_SIZE = 2
_HERE = Namespace("tenant", "")


class OneHash(tuple[Any, ...]):
    """A key whose hash is that of all others."""

    def __hash__(self) -> int:
        return 1


@pytest.fixture
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "block_key", lambda before, tokens: OneHash((before, tokens)))


@dataclasses.dataclass(eq=False)
class Holder:
    """A context that holds blocks, as a running sequence does."""

    token_ids: list[int]
    chain: Chain
    table: list[int]
    num_found: int
    is_chained: bool = True


class Cache:
    """Owns a prefix cache and what its blocks hold, written by holders as a model would."""

    def __init__(self, num_blocks: int) -> None:
        self.prefixes = PrefixCache(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.pool = self.prefixes.pool
        self.content: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        """By block: the whole context up to its end."""

    def find(self, token_ids: list[int], namespace: Namespace = _HERE, chain: Chain | None = None) -> list[int]:
        """The blocks found, each of which holds what was looked for."""
        found = self.prefixes.find(chain or Chain(namespace), token_ids, most=len(token_ids) // BLOCK_SIZE)
        for index, block in enumerate(found):
            assert self.content[block] == (namespace, tuple(token_ids[: (index + 1) * BLOCK_SIZE]))
        return found

    def start(self, token_ids: list[int], namespace: Namespace = _HERE) -> Holder | None:
        """Hold blocks for all of `token_ids`, what is cached first; None where too few are left."""
        chain = Chain(namespace)
        found = self.find(token_ids, namespace, chain)
        self.pool.share(found)
        fresh = self.pool.allocate(-(-len(token_ids) // BLOCK_SIZE) - len(found))
        if fresh is None:
            self.pool.release(reversed(found))
            return None
        for index, block in enumerate(fresh, start=len(found)):
            self.content[block] = (namespace, tuple(token_ids[: (index + 1) * BLOCK_SIZE]))
        return Holder(list(token_ids), chain, found + fresh, len(found))

    def register(self, holder: Holder, count: int) -> None:
        """Let the holder's first `count` blocks be found."""
        if holder.is_chained:
            self.prefixes.register(holder.chain, holder.token_ids, holder.table, count=count)

    def fill(self, *token_ids: int, namespace: Namespace = _HERE) -> Holder:
        """Compute a context, let all its full blocks be found, and hold them."""
        holder = self.start(list(token_ids), namespace)
        assert holder is not None
        self.register(holder, len(token_ids) // BLOCK_SIZE)
        return holder

    def end(self, holder: Holder) -> None:
        self.pool.release(reversed(holder.table))


def test_finds_the_longest_beginning_that_was_computed() -> None:
    cache = Cache(10)
    holder = cache.fill(1, 2, 3, 4, 5, 6)
    assert cache.find([1, 2, 3, 4, 5, 7]) == holder.table[:2]
    assert cache.find([1, 2, 3]) == holder.table[:1]
    assert cache.find([1, 1, 3, 4]) == []


def test_a_block_is_found_only_behind_what_came_before_it() -> None:
    cache = Cache(10)
    cache.fill(1, 2, 3, 4)
    assert cache.find([3, 4]) == []
    assert cache.find([5, 6, 3, 4]) == []


def test_what_is_held_and_what_was_let_go_is_found_alike() -> None:
    cache = Cache(10)
    holder = cache.fill(1, 2, 3, 4)
    cache.end(holder)
    assert (cache.pool.num_cached, cache.pool.num_used) == (2, 0)
    assert cache.find([1, 2, 3, 4]) == holder.table


@pytest.mark.parametrize("other", [Namespace("other", ""), Namespace("tenant", "salt"), Namespace("tenan", "t")])
def test_no_other_tenant_and_no_other_salt_finds_it(other: Namespace) -> None:
    cache = Cache(10)
    cache.fill(1, 2, 3, 4)
    assert cache.find([1, 2, 3, 4], other) == []
    assert cache.fill(1, 2, 3, 4, namespace=other).num_found == 0
    assert len(cache.find([1, 2, 3, 4])) == 2


def test_keys_of_one_hash_are_told_apart(one_hash: None) -> None:
    cache = Cache(10)
    first, second = cache.fill(1, 2, 9, 9), cache.fill(3, 4)
    other = cache.fill(1, 2, namespace=Namespace("other", ""))
    assert cache.find([1, 2, 9, 9]) == first.table
    assert cache.find([3, 4, 9, 9]) == second.table
    assert cache.find([1, 2], Namespace("other", "")) == other.table
    assert cache.find([9, 9]) == []


def test_one_block_stays_where_two_computed_the_same() -> None:
    cache = Cache(10)
    first, second = cache.start([1, 2, 3, 4, 5]), cache.start([1, 2, 3, 4, 5])
    assert first is not None
    assert second is not None
    cache.register(first, 1)
    cache.register(second, 2)
    cache.register(first, 2)
    assert first.table[:2] == second.table[:2]
    assert first.table[2] != second.table[2]
    assert cache.pool.num_used == 4
    cache.prefixes.check_invariants()


def test_the_end_of_a_chain_is_evicted_before_its_beginning() -> None:
    cache = Cache(4)
    cache.end(cache.fill(1, 2, 3, 4, 5, 6, 7, 8))
    for left in (3, 2, 1, 0):
        cache.pool.release(cache.pool.allocate(cache.pool.num_free + 1) or [])
        assert len(cache.find([1, 2, 3, 4, 5, 6, 7, 8])) == left
        cache.prefixes.check_invariants()


def test_a_beginning_used_lately_outlives_one_that_was_not() -> None:
    cache = Cache(4)
    cache.end(cache.fill(1, 2, 3, 4))
    cache.end(cache.fill(5, 6, 7, 8))
    cache.end(cache.fill(1, 2, 3, 4))
    cache.fill(9, 9, 9, 8)
    assert len(cache.find([1, 2, 3, 4])) == 2
    assert cache.find([5, 6, 7, 8]) == []


def test_a_chain_that_was_looked_up_forgets_what_was_evicted_since_and_finds_what_came() -> None:
    cache = Cache(2)
    cache.end(cache.fill(1, 2, 3, 4))
    chain = Chain(_HERE)
    assert len(cache.find([1, 2, 3, 4], chain=chain)) == 2
    other = cache.fill(5, 6)
    assert len(cache.find([1, 2, 3, 4], chain=chain)) == 1
    cache.end(other)
    cache.end(cache.fill(1, 2, 3, 4))
    assert len(cache.find([1, 2, 3, 4], chain=chain)) == 2


def test_clearing_forgets_all_and_takes_nothing_from_its_holders() -> None:
    cache = Cache(6)
    held, gone = cache.fill(1, 2, 3, 4), cache.fill(5, 6)
    cache.end(gone)
    cache.prefixes.clear()
    assert (cache.pool.num_used, cache.pool.num_cached, cache.pool.num_free) == (2, 0, 4)
    assert cache.find([1, 2, 3, 4]) == cache.find([5, 6]) == []
    cache.prefixes.check_invariants()
    cache.end(held)
    assert cache.pool.num_free == 6


class PrefixCacheMachine(RuleBasedStateMachine):
    """Contexts that begin alike come, grow and go in a pool too small for them.

    The model is what each block holds: whatever is found must hold what was looked for, and what is known to be cached
    must be found.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(num_blocks=9)
        self.holders: list[Holder] = []

    contexts = st.lists(st.integers(1, 2), min_size=1, max_size=13)
    namespaces = st.sampled_from([_HERE, _HERE, _HERE, Namespace("other", ""), Namespace("tenant", "salt")])

    @rule(token_ids=contexts, namespace=namespaces)
    def start(self, token_ids: list[int], namespace: Namespace) -> None:
        pool = self.cache.pool
        found = self.cache.find(token_ids, namespace)
        num_needed = -(-len(token_ids) // BLOCK_SIZE) - sum(pool.num_holders(block) > 0 for block in found)
        room = pool.num_free + pool.num_cached
        holder = self.cache.start(token_ids, namespace)
        assert (holder is None) == (num_needed > room), "what nobody holds is free for use"
        if holder is not None:
            assert pool.num_used == pool.num_blocks - room + num_needed
            self.holders.append(holder)

    @rule(token_ids=contexts, namespace=namespaces)
    def look(self, token_ids: list[int], namespace: Namespace) -> None:
        self.cache.find(token_ids, namespace)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        """What is computed by now: some or all of the full blocks."""
        holder = data.draw(st.sampled_from(self.holders))
        num_full = len(holder.token_ids) // BLOCK_SIZE
        self.cache.register(holder, data.draw(st.integers(holder.num_found, num_full)))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), token_id=st.integers(1, 2))
    def grow(self, data: st.DataObject, token_id: int) -> None:
        """A token more, and a block for it where the last one is full."""
        holder = data.draw(st.sampled_from(self.holders))
        if len(holder.token_ids) == len(holder.table) * BLOCK_SIZE:
            fresh = self.cache.pool.allocate(1)
            if fresh is None:
                return
            holder.table += fresh
        holder.token_ids.append(token_id)
        self.cache.content[holder.table[-1]] = (holder.chain.namespace, tuple(holder.token_ids))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.cache.end(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @rule(chance=st.integers(0, 14))
    def turn_off_and_on(self, chance: int) -> None:
        if chance == 14:
            self.cache.prefixes.clear()
            for holder in self.holders:
                holder.is_chained = False

    @invariant()
    def books_agree(self) -> None:
        cache = self.cache
        cache.prefixes.check_invariants()
        tables = [block for holder in self.holders for block in holder.table]
        for block in range(cache.pool.num_blocks):
            assert cache.pool.num_holders(block) == tables.count(block)
        for holder in self.holders:
            chained = holder.chain.blocks if holder.is_chained else []
            for index, entry in enumerate(chained):
                assert entry.block == holder.table[index], "a holder's chain is not what it holds"
            assert len(cache.find(holder.token_ids, holder.chain.namespace)) >= len(chained)
            for index, block in enumerate(holder.table):
                written = holder.token_ids[: (index + 1) * BLOCK_SIZE]
                assert cache.content[block] == (holder.chain.namespace, tuple(written)), (
                    "a block in use was overwritten"
                )

    def teardown(self) -> None:
        for holder in self.holders:
            self.cache.end(holder)
        pool = self.cache.pool
        assert pool.num_used == 0
        assert len(pool.allocate(pool.num_blocks) or []) == pool.num_blocks
        assert all(entry is None for entry in self.cache.prefixes._by_block)


def test_any_course_of_events_finds_what_is_cached_and_nothing_else() -> None:
    assert run_machine(PrefixCacheMachine, max_examples=60, num_steps=40) > 1000


@pytest.mark.usefixtures("one_hash")
def test_any_course_of_events_is_the_same_where_all_keys_have_one_hash() -> None:
    assert run_machine(PrefixCacheMachine, max_examples=20, num_steps=40) > 300


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_any_course_of_a_hundred_thousand_steps_finds_what_is_cached_and_nothing_else() -> None:
    assert run_machine(PrefixCacheMachine, max_examples=1400, num_steps=100) >= 100_000
