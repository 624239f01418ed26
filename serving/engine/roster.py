"""Every live sequence, where it is, and the blocks that it holds: the moves between the states of a sequence."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey
from serving.engine.order import Order, rank_of
from serving.engine.prefix_cache import PrefixCache
from serving.engine.sequence import NEVER, Sequence, SequenceStatus
from serving.engine.step_admission import num_blocks_of
from serving.engine.waiting import WaitingQueue


class Roster:
    """Owns the live sequences and the blocks; used by the engine's thread only.

    waiting → running → finished, with running → preempted → running in between, and from anywhere to finished. Only
    running sequences hold blocks. `running` is sorted by rank, the most deserving first.

    A sequence starts with the blocks of its beginning that are computed already: those that are cached, and those of a
    sibling, that is another choice of its request with the same prompt, whether prefix caching is on or off.
    """

    def __init__(self, *, num_blocks: int, block_size: int, order: Order, long_tokens: int) -> None:
        self.block_size = block_size
        self.prefix_cache = PrefixCache(num_blocks=num_blocks, block_size=block_size)
        self.pool = self.prefix_cache.pool
        self.waiting = WaitingQueue(order, long_tokens=long_tokens, num_to_compute=self.num_tokens_to_compute)
        self.running: list[Sequence] = []
        self.num_prefix_query_tokens = 0
        """Context tokens of the sequences that started while prefix caching was on, each start counted, but for those
        that a sibling had computed."""
        self.num_prefix_hit_tokens = 0
        """Those of them that were found."""
        self._by_request: dict[RequestId, dict[int, Sequence]] = {}
        self._is_caching = True

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    def __iter__(self) -> Iterator[Sequence]:
        for choices in self._by_request.values():
            yield from choices.values()

    def find(self, key: SequenceKey) -> Sequence | None:
        """The live sequence of this key."""
        return self._by_request.get(key.request_id, {}).get(key.choice)

    def choices_of(self, request_id: RequestId) -> list[Sequence]:
        """The request's live sequences."""
        return list(self._by_request.get(request_id, {}).values())

    def owned_by(self, owner_id: OwnerId) -> list[Sequence]:
        """The owner's live sequences. Looks at all: for the rare case that an owner is gone."""
        return [sequence for sequence in self if sequence.owner_id == owner_id]

    def enter(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        assert self.find(sequence.key) is None, f"{sequence.key} lives already"
        choices = self._by_request.setdefault(sequence.key.request_id, {})
        alike = (other.family for other in choices.values() if _is_alike(other, sequence))
        sequence.family = next(alike, sequence.serial)
        choices[sequence.key.choice] = sequence
        self.waiting.push(sequence)
        if not all(choice.is_refusable for choice in choices.values()):
            self._spare_request(sequence)

    def use_prefix_caching(self, *, is_on: bool) -> None:
        """Look up and keep what sequences compute, or neither; when it ends, all that is cached is dropped.

        Sequences that run when it begins are not cached, but for those that are preempted and start again.
        """
        if is_on == self._is_caching:
            return
        self._is_caching = is_on
        self.prefix_cache.clear()
        for sequence in self.running:
            sequence.next_block_end = NEVER

    def rank_anew(self, order: Order, *, long_tokens: int) -> None:
        """Let all wait and run by `order`, with this bound of what is long. It ranks by arrival, urgency and protection
        alone; what it makes of service moves, and is asked when it matters."""
        self.waiting.arrange(order, long_tokens=long_tokens)
        for sequence in self.running:
            sequence.rank = order.rank(sequence)
        self.running.sort(key=rank_of)

    def num_tokens_to_compute(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that would be computed if it started now."""
        return sequence.num_tokens - self.block_size * len(self._find_beginning(sequence))

    def num_blocks_to_start(self, sequence: Sequence) -> int:
        """Blocks by which the use of the pool grows when a waiting sequence starts."""
        found = self._find_beginning(sequence)
        # Whoever holds one of them holds all before it.
        num_held = bisect.bisect_left(found, 0, key=lambda block: -self.pool.num_holders(block))
        return num_blocks_of(sequence.num_tokens, self.block_size) - num_held

    def needs_of(self, waiting: Iterable[Sequence], *, share_prompts: bool) -> Iterator[tuple[int, int]]:
        """Tokens to compute and blocks to take of each of these waiting sequences, if they started together.

        With `share_prompts`, a choice waits for the first of its siblings and shares what that one computes.
        """
        families: set[int] = set()
        for sequence in waiting:
            num_tokens, num_blocks = self.num_tokens_to_compute(sequence), self.num_blocks_to_start(sequence)
            if share_prompts and (sequence.family in families or self._running_siblings(sequence)):
                num_own_tokens = sequence.num_tokens - self._num_prompt_blocks(sequence) * self.block_size
                num_tokens = min(num_tokens, num_own_tokens)
                num_blocks = min(num_blocks, num_blocks_of(num_own_tokens, self.block_size))
            families.add(sequence.family)
            yield num_tokens, num_blocks

    def is_sibling_prefilling(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence could share its whole prompt if it waited, since a sibling is computing it.

        The sibling runs, so this ends. For who can join later: a static batch forms whole and cannot wait.
        """
        if not self._running_siblings(sequence):
            return False
        return len(self._find_beginning(sequence)) < self._num_prompt_blocks(sequence)

    def start(self, sequence: Sequence) -> None:
        """Move a waiting sequence to the running, with blocks for its whole context; the caller saw that they fit.

        What it finds computed is not computed again, its last token excepted.
        """
        found = self._find_beginning(sequence)
        num_shared_tokens = self._num_shared_tokens(sequence)
        self.pool.share(found)
        fresh = self.pool.allocate(num_blocks_of(sequence.num_tokens, self.block_size) - len(found))
        assert fresh is not None, f"{sequence.key} was started without room for it"
        self._spare_request(sequence)
        self.waiting.remove(sequence)
        sequence.block_table = found + fresh
        sequence.num_computed_tokens = sequence.num_planned_tokens = len(found) * self.block_size
        sequence.prefill_end = sequence.num_tokens
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        sequence.num_counted_prompt_tokens = max(sequence.num_counted_prompt_tokens, num_shared_tokens)
        self._link(sequence, found)
        if self._is_caching and not sequence.params.needs_whole_prompt:
            self.num_prefix_query_tokens += sequence.num_tokens - num_shared_tokens
            self.num_prefix_hit_tokens += sequence.num_computed_tokens - num_shared_tokens
        sequence.status = SequenceStatus.RUNNING
        bisect.insort(self.running, sequence, key=rank_of)

    def note_full_blocks(self, sequence: Sequence) -> None:
        """Let others find the full blocks that a running sequence has computed: for when it passed `next_block_end`."""
        count = sequence.num_computed_tokens // self.block_size
        self.prefix_cache.register(sequence.chain, sequence.token_ids, sequence.block_table, count=count)
        sequence.next_block_end = (count + 1) * self.block_size

    def num_blocks_missing(self, sequence: Sequence, *, num_awaited: int = 0) -> int:
        """Blocks that a running sequence lacks to compute its whole context, and `num_awaited` tokens more."""
        return num_blocks_of(sequence.num_tokens + num_awaited, self.block_size) - len(sequence.block_table)

    def grow(self, sequence: Sequence, count: int) -> None:
        """Give a running sequence `count` blocks more; the caller saw that they are free."""
        blocks = self.pool.allocate(count)
        assert blocks is not None, f"{sequence.key} grew without room for it"
        sequence.block_table.extend(blocks)

    def shrink(self, sequence: Sequence, count: int) -> None:
        """Take the last `count` blocks of a running sequence that no plan in flight has, in which there is nothing."""
        self.pool.release(sequence.block_table[-count:])
        del sequence.block_table[-count:]

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and let it wait, before those never started. It keeps its tokens."""
        self._stop_running(sequence)
        sequence.num_computed_tokens = sequence.num_planned_tokens = 0
        sequence.hidden_sum = None
        sequence.num_preemptions += 1
        sequence.status = SequenceStatus.PREEMPTED
        self.waiting.push(sequence)

    def leave(self, sequence: Sequence) -> None:
        """End a live sequence, whatever its state; its blocks are free."""
        if sequence.status is SequenceStatus.RUNNING:
            self._stop_running(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        choices = self._by_request[sequence.key.request_id]
        del choices[sequence.key.choice]
        if not choices:
            del self._by_request[sequence.key.request_id]

    def check_invariants(self) -> None:
        """Raise AssertionError where states, lists and blocks contradict each other. Linear in all: for tests."""
        self.prefix_cache.check_invariants()
        self._check_holders()
        assert all(sequence.status is SequenceStatus.RUNNING for sequence in self.running), "a stranger runs"
        assert self.running == sorted(self.running, key=rank_of), "the running are not in order"
        assert not any(sequence.block_table for sequence in self.waiting), "a waiting sequence holds blocks"
        assert len(self) == sum(1 for _ in self), "a sequence is in no list, or in two"
        num_tokens = sum(sequence.num_tokens for sequence in self.waiting)
        assert num_tokens == self.waiting.num_tokens, "the waiting tokens are miscounted"
        num_long = sum(sequence.is_long for sequence in self.waiting)
        assert num_long == self.waiting.counts().num_long, "the long ones that wait are miscounted"
        num_long_tokens = sum(sequence.num_tokens for sequence in self.waiting if sequence.is_long)
        assert num_long_tokens == self.waiting.counts().num_long_tokens, "the tokens of the long are miscounted"
        num_counted = sum(self.waiting.counts().by_priority.values())
        assert num_counted == len(self.waiting), "those that wait are miscounted by their priority"

    def _check_holders(self) -> None:
        places: dict[int, list[tuple[int, Sequence]]] = {}
        for sequence in self.running:
            for index, block in enumerate(sequence.block_table):
                places.setdefault(block, []).append((index, sequence))
        for block in range(self.pool.num_blocks):
            assert self.pool.num_holders(block) == len(places.get(block, ())), f"block {block}: holders are miscounted"
        for block, holders in places.items():
            contents = set()
            for index, sequence in holders if len(holders) > 1 else ():
                begin, end = index * self.block_size, (index + 1) * self.block_size
                assert end <= sequence.num_computed_tokens, f"block {block} is shared and may still be written to"
                contents.add((index, *sequence.token_ids[begin:end]))
            assert len(contents) <= 1, f"block {block} holds one thing for one sequence, another for the next"

    def _find_beginning(self, sequence: Sequence) -> list[int]:
        """Blocks of a waiting sequence that are computed already, its last token's excepted: its logits are wanted."""
        if sequence.params.needs_whole_prompt:
            return []
        found: list[int] = []
        if self._is_caching:
            most = (sequence.num_tokens - 1) // self.block_size
            found = self.prefix_cache.find(sequence.chain, sequence.token_ids, most=most)
        num_prompt_blocks = self._num_prompt_blocks(sequence)
        if len(found) < num_prompt_blocks and (sibling := self._sibling_past_prompt(sequence)) is not None:
            return sibling.block_table[:num_prompt_blocks]
        return found

    def _num_prompt_blocks(self, sequence: Sequence) -> int:
        """Blocks that the sequence can share with its siblings."""
        if sequence.params.needs_whole_prompt:
            return 0
        return min(sequence.num_prompt_tokens, sequence.num_tokens - 1) // self.block_size

    def _num_shared_tokens(self, sequence: Sequence) -> int:
        """Positions of a waiting sequence that are a sibling's work."""
        if self._sibling_past_prompt(sequence) is None:
            return 0
        return self._num_prompt_blocks(sequence) * self.block_size

    def _sibling_past_prompt(self, sequence: Sequence) -> Sequence | None:
        """A running sibling that has computed all that the two can share."""
        num_tokens = self._num_prompt_blocks(sequence) * self.block_size
        past = (other for other in self._running_siblings(sequence) if other.num_computed_tokens >= num_tokens)
        return next(past, None)

    def _spare_request(self, sequence: Sequence) -> None:
        """Refuse none of its request's choices for waiting any more."""
        for choice in self._by_request[sequence.key.request_id].values():
            self.waiting.spare(choice)

    def _running_siblings(self, sequence: Sequence) -> list[Sequence]:
        choices = self._by_request[sequence.key.request_id]
        if len(choices) == 1:
            return []
        return [
            other
            for other in choices.values()
            if other.family == sequence.family and other.status is SequenceStatus.RUNNING and other is not sequence
        ]

    def _link(self, sequence: Sequence, found: list[int]) -> None:
        """Begin to note what a sequence computes that starts with the blocks `found`."""
        chain = sequence.chain
        # A sibling's blocks that are not cached stay so: behind them, nothing could be found.
        is_chained = self._is_caching and len(found) <= len(chain.blocks)
        del chain.blocks[len(found) if is_chained else 0 :]
        sequence.next_block_end = (len(found) + 1) * self.block_size if is_chained else NEVER

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        # From the end: what is let go first is evicted first, and nothing is found behind a block that is lost.
        self.pool.release(reversed(sequence.block_table))
        # A new list: a plan in flight may still read the old one.
        sequence.block_table = []


def _is_alike(one: Sequence, other: Sequence) -> bool:
    if one.num_prompt_tokens != other.num_prompt_tokens or one.chain.namespace != other.chain.namespace:
        return False
    return one.prompt_ids == other.prompt_ids
