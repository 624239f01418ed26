"""Every live sequence, where it is, and the blocks that it holds: the moves between the states of a sequence."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey
from serving.engine.block_pool import BlockPool
from serving.engine.sequence import Rank, Sequence, SequenceStatus
from serving.engine.step_admission import num_blocks_of
from serving.engine.waiting import WaitingQueue


class Roster:
    """Owns the live sequences and the block pool; used by the engine's thread only.

    waiting → running → finished, with running → preempted → running in between, and from anywhere to finished. Only
    running sequences hold blocks. `running` is sorted by rank, the most deserving first.
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self._by_request: dict[RequestId, dict[int, Sequence]] = {}

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
        self._by_request.setdefault(sequence.key.request_id, {})[sequence.key.choice] = sequence
        self.waiting.push(sequence)

    def start(self, sequence: Sequence) -> None:
        """Move a waiting sequence to the running, with blocks for its whole context; the caller saw that they fit."""
        blocks = self.pool.allocate(num_blocks_of(sequence.num_tokens, self.block_size))
        assert blocks is not None, f"{sequence.key} was started without room for it"
        self.waiting.remove(sequence)
        sequence.block_table = blocks
        sequence.prefill_end = sequence.num_tokens
        sequence.status = SequenceStatus.RUNNING
        bisect.insort(self.running, sequence, key=_rank)

    def num_blocks_missing(self, sequence: Sequence) -> int:
        """Blocks that a running sequence lacks to compute its whole context."""
        return num_blocks_of(sequence.num_tokens, self.block_size) - len(sequence.block_table)

    def grow(self, sequence: Sequence, count: int) -> None:
        """Give a running sequence `count` blocks more; the caller saw that they are free."""
        blocks = self.pool.allocate(count)
        assert blocks is not None, f"{sequence.key} grew without room for it"
        sequence.block_table.extend(blocks)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and let it wait, before those never started. It keeps its tokens."""
        self._stop_running(sequence)
        sequence.num_computed_tokens = 0
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
        self.pool.check_invariants()
        held = [block for sequence in self.running for block in sequence.block_table]
        assert len(held) == len(set(held)), "two sequences hold one block"
        assert len(held) == self.pool.num_used, "blocks are held by nobody alive"
        assert all(sequence.status is SequenceStatus.RUNNING for sequence in self.running), "a stranger runs"
        assert self.running == sorted(self.running, key=_rank), "the running are not in order"
        assert not any(sequence.block_table for sequence in self.waiting), "a waiting sequence holds blocks"
        assert len(self) == sum(1 for _ in self), "a sequence is in no list, or in two"
        num_tokens = sum(sequence.num_tokens for sequence in self.waiting)
        assert num_tokens == self.waiting.num_tokens, "the waiting tokens are miscounted"

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.block_table)
        # A new list: a plan in flight may still read the old one.
        sequence.block_table = []


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank
