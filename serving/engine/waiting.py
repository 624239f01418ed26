"""The sequences that wait for a place in the running batch."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import TypeVar

from serving.engine.sequence import Rank, Sequence, SequenceStatus

Place = tuple[bool, Rank]
Key = TypeVar("Key", Place, tuple[float, int])


class WaitingQueue:
    """Owns the waiting sequences in the order they are to be served; used by the engine's thread only.

    Preempted ones come before those never started, each group by rank. A sequence's status and rank stay as they are
    while it waits. Its bound is kept at the door (`max_queue_requests`), where excess is refused.
    """

    def __init__(self) -> None:
        self._in_order: list[Sequence] = []
        self._unstarted: list[Sequence] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._in_order)

    @property
    def num_tokens(self) -> int:
        """Context tokens of all that wait: for those never started, their prompts."""
        return self._num_tokens

    @property
    def first(self) -> Sequence | None:
        """The next to be served."""
        return self._in_order[0] if self._in_order else None

    @property
    def oldest_unstarted(self) -> Sequence | None:
        """The earliest arrival among those that never ran."""
        return self._unstarted[0] if self._unstarted else None

    def unstarted(self) -> list[Sequence]:
        """Those that never ran, the earliest arrival first; a copy."""
        return list(self._unstarted)

    def push(self, sequence: Sequence) -> None:
        """Take in a sequence that is waiting or preempted."""
        bisect.insort(self._in_order, sequence, key=_place)
        if sequence.status is SequenceStatus.WAITING:
            bisect.insort(self._unstarted, sequence, key=_age)
        self._num_tokens += sequence.num_tokens

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        _remove(self._in_order, sequence, _place)
        if sequence.status is SequenceStatus.WAITING:
            _remove(self._unstarted, sequence, _age)
        self._num_tokens -= sequence.num_tokens


def _place(sequence: Sequence) -> Place:
    return (sequence.status is not SequenceStatus.PREEMPTED, sequence.rank)


def _age(sequence: Sequence) -> tuple[float, int]:
    return (sequence.arrival, sequence.serial)


def _remove(ordered: list[Sequence], sequence: Sequence, key: Callable[[Sequence], Key]) -> None:
    index = bisect.bisect_left(ordered, key(sequence), key=key)
    assert ordered[index : index + 1] == [sequence], f"{sequence.key} is not in the waiting queue"
    del ordered[index]
