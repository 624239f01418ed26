"""The sequences that wait for a place in the running batch."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from serving.engine.order import Line, Order, rank_of
from serving.engine.sequence import Rank, Sequence, SequenceStatus

Key = TypeVar("Key", Rank, tuple[float, int])

_NAMED_PRIORITIES = 8


class WaitingCounts(NamedTuple):
    """Context tokens of all that wait, how many stand in the lanes of the long ones and with how many of these tokens,
    and how many wait of each priority: of the commonest eight, and of all others together as `other`."""

    num_tokens: int
    num_long: int
    num_long_tokens: int
    by_priority: dict[str, int]


class WaitingQueue:
    """Owns the waiting sequences in the order they are to be served; used by the engine's thread only.

    Preempted ones come before those never started, each group line by line as the order has it. In every line the long
    ones have a lane of their own. `num_to_compute` tells how much of a context would be computed if it started; it is
    asked when a sequence comes, and again when it is named. A sequence's status and rank stay as they are while it
    waits, but for `arrange`. Its bound is kept at the door (`max_queue_requests`), where excess is refused.
    """

    def __init__(self, order: Order, *, long_tokens: int, num_to_compute: Callable[[Sequence], int]) -> None:
        self._order = order
        self._long_tokens = long_tokens
        self._num_to_compute = num_to_compute
        self._preempted: dict[Line, Lanes] = {}
        self._unstarted: dict[Line, Lanes] = {}
        self._by_age: list[Sequence] = []
        self._refusable: list[Sequence] = []
        self._deadlines: list[Sequence] = []
        self._num_tokens = 0
        self._num_preempted = 0
        self._num_long = 0
        self._num_long_tokens = 0
        self._by_priority: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._by_age) + self._num_preempted

    def __iter__(self) -> Iterator[Sequence]:
        """All, in no particular order."""
        for lanes in itertools.chain(self._preempted.values(), self._unstarted.values()):
            yield from lanes.short
            yield from lanes.long

    @property
    def num_tokens(self) -> int:
        """Context tokens of all that wait: for those never started, their prompts."""
        return self._num_tokens

    @property
    def num_preempted(self) -> int:
        """How many ran before."""
        return self._num_preempted

    def counts(self) -> WaitingCounts:
        """Who waits, counted as they come and go."""
        named = {str(priority): count for priority, count in self._by_priority.most_common(_NAMED_PRIORITIES)}
        if len(self._by_priority) > _NAMED_PRIORITIES:
            named["other"] = len(self) - sum(named.values())
        return WaitingCounts(self._num_tokens, self._num_long, self._num_long_tokens, named)

    @property
    def oldest_unstarted(self) -> Sequence | None:
        """The earliest arrival among those that never ran."""
        return self._by_age[0] if self._by_age else None

    @property
    def oldest_refusable(self) -> Sequence | None:
        """The earliest arrival among those of whose requests nothing has begun, here or elsewhere."""
        return self._refusable[0] if self._refusable else None

    @property
    def soonest_deadline(self) -> Sequence | None:
        """The earliest deadline of its own among the same."""
        return self._deadlines[0] if self._deadlines else None

    def unstarted(self) -> list[Sequence]:
        """Those that never ran, the earliest arrival first; a copy."""
        return list(self._by_age)

    def in_order(self) -> Iterator[Sequence]:
        """All, in the order in which they would be served as things stand."""
        for group in (self._preempted, self._unstarted):
            for line in sorted(group, key=self._order.standing):
                yield from heapq.merge(group[line].short, group[line].long, key=rank_of)

    def num_ahead_of(self, sequence: Sequence) -> int:
        """How many come before a waiting sequence in that order.

        Under `fair` fewer will: a tenant that was served less so far counts with all that it has waiting, but takes
        turns with others as soon as it has been served as much.
        """
        group, own = self._group_of(sequence), self._order.line_of(sequence)
        standing = self._order.standing(own)
        before = [lanes for line, lanes in group.items() if line != own and self._order.standing(line) < standing]
        num_ahead = sum(len(lanes.short) + len(lanes.long) for lanes in before)
        num_ahead += sum(bisect.bisect_left(lane, sequence.rank, key=rank_of) for lane in group[own].both())
        return num_ahead + (self._num_preempted if group is self._unstarted else 0)

    def company(self, *, most_long: int) -> Iterator[Sequence]:
        """Those that could start together, in no particular order: all but the long ones beyond `most_long`."""
        for lanes in itertools.chain(self._preempted.values(), self._unstarted.values()):
            yield from lanes.short
            yield from lanes.long[:most_long]
            most_long -= min(most_long, len(lanes.long))

    def candidates(self, *, with_unstarted: bool) -> Candidates:
        """Who is to be served next, one after the other."""
        groups = [self._preempted, self._unstarted] if with_unstarted else [self._preempted]
        return Candidates(self._order, groups, is_long=self._is_long, move=self._move)

    def push(self, sequence: Sequence) -> None:
        """Take in a sequence that is waiting or preempted."""
        self._line_up(sequence)
        if sequence.status is SequenceStatus.WAITING:
            bisect.insort(self._by_age, sequence, key=_age)
            if sequence.is_refusable:
                self._limit(sequence)
        else:
            self._num_preempted += 1
        self._num_tokens += sequence.num_tokens
        self._by_priority[sequence.priority] += 1
        self._order.begin_waiting(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        group, line = self._group_of(sequence), self._order.line_of(sequence)
        _remove(group[line].of(sequence), sequence, rank_of)
        if not group[line].short and not group[line].long:
            del group[line]
        if sequence.status is SequenceStatus.WAITING:
            _remove(self._by_age, sequence, _age)
            if sequence.is_refusable:
                self._unlimit(sequence)
        else:
            self._num_preempted -= 1
        self._num_tokens -= sequence.num_tokens
        self._count_long(sequence, -sequence.is_long)
        self._by_priority[sequence.priority] -= 1
        if not self._by_priority[sequence.priority]:
            del self._by_priority[sequence.priority]
        self._order.end_waiting(sequence)

    def spare(self, sequence: Sequence) -> None:
        """Let it wait for as long as it takes, since a part of its request has begun."""
        if sequence.is_refusable:
            self._unlimit(sequence)
            sequence.is_refusable = False

    def arrange(self, order: Order, *, long_tokens: int) -> None:
        """Line all up anew, as `order` ranks them and with this bound of what is long. Mutates their ranks."""
        is_new, waiting = order is not self._order, list(self)
        self._order, self._long_tokens = order, long_tokens
        self._preempted.clear()
        self._unstarted.clear()
        self._num_long = self._num_long_tokens = 0
        for sequence in waiting:
            sequence.rank = order.rank(sequence)
        for sequence in sorted(waiting, key=rank_of):
            self._line_up(sequence)
            if is_new:
                order.begin_waiting(sequence)

    def _limit(self, sequence: Sequence) -> None:
        """Let it be found when it has waited too long."""
        bisect.insort(self._refusable, sequence, key=_age)
        if sequence.deadline < math.inf:
            bisect.insort(self._deadlines, sequence, key=_urgency)

    def _unlimit(self, sequence: Sequence) -> None:
        _remove(self._refusable, sequence, _age)
        if sequence.deadline < math.inf:
            _remove(self._deadlines, sequence, _urgency)

    def _line_up(self, sequence: Sequence) -> None:
        sequence.is_long = self._is_long(sequence)
        self._count_long(sequence, sequence.is_long)
        lanes = self._group_of(sequence).setdefault(self._order.line_of(sequence), Lanes())
        bisect.insort(lanes.of(sequence), sequence, key=rank_of)

    def _move(self, lanes: Lanes, sequence: Sequence) -> None:
        lanes.move(sequence)
        self._count_long(sequence, 1 if sequence.is_long else -1)

    def _count_long(self, sequence: Sequence, num: int) -> None:
        """One more in the lanes of the long, one less, or none."""
        self._num_long += num
        self._num_long_tokens += num * sequence.num_tokens

    def _is_long(self, sequence: Sequence) -> bool:
        # The cache is asked only where it matters.
        return sequence.num_tokens > self._long_tokens and self._num_to_compute(sequence) > self._long_tokens

    def _group_of(self, sequence: Sequence) -> dict[Line, Lanes]:
        return self._preempted if sequence.status is SequenceStatus.PREEMPTED else self._unstarted


class Lanes:
    """Owns one line's sequences, short and long ones apart, each by rank."""

    __slots__ = ("long", "short")

    def __init__(self) -> None:
        self.short: list[Sequence] = []
        self.long: list[Sequence] = []

    def both(self) -> tuple[list[Sequence], list[Sequence]]:
        """The two lanes."""
        return self.short, self.long

    def of(self, sequence: Sequence) -> list[Sequence]:
        """The lane that it belongs to."""
        return self.long if sequence.is_long else self.short

    def move(self, sequence: Sequence) -> None:
        """Put it into the other lane."""
        _remove(self.of(sequence), sequence, rank_of)
        sequence.is_long = not sequence.is_long
        bisect.insort(self.of(sequence), sequence, key=rank_of)


class Candidates:
    """Owns how far one step has come through the waiting; not to be used after it.

    `next` names the most deserving. The caller starts it, which takes it out of the queue, or passes it over. What is
    cached of a context comes and goes while it waits, so it is moved to the lane where it belongs before it is named.
    """

    def __init__(
        self,
        order: Order,
        groups: list[dict[Line, Lanes]],
        *,
        is_long: Callable[[Sequence], bool],
        move: Callable[[Lanes, Sequence], None],
    ) -> None:
        self._order = order
        self._is_long = is_long
        self._move = move
        # Group, standing, a number that makes entries differ, line, its lanes, and how many are passed over in each.
        self._heap: list[_Entry] = [
            (index, order.standing(line), number, line, lanes, [0, 0])
            for index, group in enumerate(groups)
            for number, (line, lanes) in enumerate(group.items())
        ]
        heapq.heapify(self._heap)
        self._is_long_lane_open = True

    def next(self) -> Sequence | None:
        """The most deserving that was neither started nor passed over; None where there is none."""
        while self._heap:
            group, standing, number, line, lanes, passed = self._heap[0]
            actual = self._order.standing(line)
            if actual != standing:
                # One of this line joined meanwhile; a standing only rises, so nobody behind it was overlooked.
                heapq.heapreplace(self._heap, (group, actual, number, line, lanes, passed))
                continue
            candidate = self._first(lanes, passed)
            if candidate is None:
                heapq.heappop(self._heap)
            elif self._is_long(candidate) == candidate.is_long:
                return candidate
            else:
                # Nobody behind it in its line was passed over, so the counts hold.
                self._move(lanes, candidate)
        return None

    def pass_over(self, sequence: Sequence) -> None:
        """Leave this one, the last that `next` named, where it is."""
        self._heap[0][-1][sequence.is_long] += 1

    def close_long_lane(self) -> None:
        """Name no long ones any more."""
        self._is_long_lane_open = False

    def _first(self, lanes: Lanes, passed: list[int]) -> Sequence | None:
        short = lanes.short[passed[0]] if passed[0] < len(lanes.short) else None
        if not self._is_long_lane_open or passed[1] >= len(lanes.long):
            return short
        long = lanes.long[passed[1]]
        return long if short is None or long.rank < short.rank else short


_Entry = tuple[int, float, int, Line, Lanes, list[int]]


def _age(sequence: Sequence) -> tuple[float, int]:
    return (sequence.arrival, sequence.serial)


def _urgency(sequence: Sequence) -> tuple[float, int]:
    return (sequence.deadline, sequence.serial)


def _remove(ordered: list[Sequence], sequence: Sequence, key: Callable[[Sequence], Key]) -> None:
    index = bisect.bisect_left(ordered, key(sequence), key=key)
    assert ordered[index : index + 1] == [sequence], f"{sequence.key} is not in the waiting queue"
    del ordered[index]
