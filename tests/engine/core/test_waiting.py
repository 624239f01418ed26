"""The waiting, in the order in which they are named as candidates."""

from __future__ import annotations

from typing import Any

import pytest

from serving.engine.order import FairOrder, Order, RankOrder
from serving.engine.sequence import Sequence, SequenceStatus
from serving.engine.waiting import WaitingQueue
from tests.engine.core.harness import World, submit


class Line:
    """Owns a queue, and fills it with sequences that are long from 10 tokens on."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.num_cached: dict[str, int] = {}
        """Tokens by name that would not be computed."""
        self.queue = WaitingQueue(order, long_tokens=10, num_to_compute=self._num_to_compute)
        self._num_added = 0

    def _num_to_compute(self, sequence: Sequence) -> int:
        return sequence.num_tokens - self.num_cached.get(sequence.key.request_id, 0)

    def add(self, name: str, *, preempted: bool = False, protection: int = 0, **request: Any) -> Sequence:
        self._num_added += 1
        sequence = Sequence.of(
            submit(name, **request), eos_token_ids=frozenset(), serial=self._num_added, now=float(self._num_added)
        )
        sequence.status = SequenceStatus.PREEMPTED if preempted else SequenceStatus.WAITING
        sequence.protection = protection
        sequence.rank = self.order.rank(sequence)
        self.queue.push(sequence)
        return sequence

    def served(self, *, with_unstarted: bool = True) -> list[str]:
        """All that are named while each is taken out as it is."""
        candidates = self.queue.candidates(with_unstarted=with_unstarted)
        names = []
        while (sequence := candidates.next()) is not None:
            self.queue.remove(sequence)
            names.append(sequence.key.request_id)
        return names


def test_those_who_ran_before_come_first() -> None:
    line = Line(RankOrder(seconds_a_level=0.0))
    for name, preempted in (("a", False), ("b", True), ("c", False), ("d", True)):
        line.add(name, preempted=preempted)
    assert line.served(with_unstarted=False) == ["b", "d"]
    assert line.served() == ["a", "c"]
    assert len(line.queue) == line.queue.num_tokens == line.queue.num_preempted == 0


def test_the_protected_come_first_in_a_fixed_order_though_their_tenant_was_served_most() -> None:
    line = Line(FairOrder())
    first = line.add("modest", preempted=True, tenant="modest")
    line.add("p2", preempted=True, protection=2, tenant="greedy")
    line.add("p1", preempted=True, protection=1, tenant="greedy")
    line.order.charge(first, num_prompt_tokens=1, num_generated=0)
    line.order.charge(line.add("greedy", preempted=True, tenant="greedy"), num_prompt_tokens=100, num_generated=0)
    assert line.served() == ["p1", "p2", "modest", "greedy"]


def test_what_is_promised_counts_for_who_comes_next() -> None:
    line = Line(FairOrder())
    for name in ("a1", "a2", "b1", "b2"):
        line.add(name, tenant=name[0], prompt=8)
    candidates = line.queue.candidates(with_unstarted=True)
    names = []
    line.order.promise([])
    while (sequence := candidates.next()) is not None:
        line.queue.remove(sequence)
        line.order.admit(sequence)
        names.append(sequence.key.request_id)
    assert names == ["a1", "b1", "a2", "b2"]


def test_who_is_passed_over_stays_and_others_follow() -> None:
    line = Line(RankOrder(seconds_a_level=0.0))
    for name, length in (("a", 3), ("long-b", 30), ("c", 3), ("long-d", 30)):
        line.add(name, prompt=length)
    candidates = line.queue.candidates(with_unstarted=True)
    named = []
    while (sequence := candidates.next()) is not None:
        named.append(sequence.key.request_id)
        candidates.pass_over(sequence)
    assert named == ["a", "long-b", "c", "long-d"]
    assert len(line.queue) == 4


def test_a_closed_long_lane_names_short_ones_alone() -> None:
    line = Line(RankOrder(seconds_a_level=0.0))
    for name, length in (("long-a", 30), ("b", 3), ("long-c", 30), ("d", 3)):
        line.add(name, prompt=length)
    candidates = line.queue.candidates(with_unstarted=True)
    candidates.close_long_lane()
    first = candidates.next()
    assert first is not None
    candidates.pass_over(first)
    second = candidates.next()
    assert second is not None
    assert (first.key.request_id, second.key.request_id) == ("b", "d")
    assert {sequence.key.request_id for sequence in line.queue.company(most_long=1)} == {"long-a", "b", "d"}


def test_who_is_named_waits_in_the_lane_where_it_belongs_by_now() -> None:
    line = Line(RankOrder(seconds_a_level=0.0))
    line.num_cached = {"b": 25}
    for name, length in (("a", 30), ("b", 30), ("c", 3), ("d", 30), ("e", 3)):
        line.add(name, prompt=length)
    assert [s.key.request_id for s in line.queue if s.is_long] == ["a", "d"]
    line.num_cached = {"a": 25}
    candidates = line.queue.candidates(with_unstarted=True)
    named = []
    while (sequence := candidates.next()) is not None:
        named.append((sequence.key.request_id, sequence.is_long))
        candidates.pass_over(sequence)
    assert named == [("a", False), ("b", True), ("c", False), ("d", True), ("e", False)]
    line.num_cached = {}
    candidates = line.queue.candidates(with_unstarted=True)
    candidates.close_long_lane()
    first = candidates.next()
    assert first is not None
    assert first.key.request_id == "c"
    assert line.served() == ["a", "b", "c", "d", "e"]


def test_arranging_anew_with_the_same_order_keeps_what_it_knows() -> None:
    line = Line(FairOrder())
    line.order.charge(line.add("a", tenant="a", prompt=20), num_prompt_tokens=9, num_generated=0)
    line.add("b", tenant="b", prompt=20)
    line.order.charge(line.add("b2", tenant="b"), num_prompt_tokens=100, num_generated=0)
    line.queue.arrange(line.order, long_tokens=50)
    assert not any(sequence.is_long for sequence in line.queue)
    assert line.served() == ["a", "b", "b2"]
    line.add("new", tenant="new")
    assert line.order.standing("new") == line.order.standing("b") == 109


@pytest.mark.parametrize("order", [RankOrder(seconds_a_level=10.0), FairOrder()])
def test_place_in_the_queue_is_how_many_are_served_before(order: Order) -> None:
    line = Line(order)
    for index in range(12):
        tenant = "ann" if index % 3 else "bob"
        preempted = index in (4, 7)
        line.add(f"s{index}", tenant=tenant, priority=index % 4, prompt=4 + 3 * (index % 5), preempted=preempted)
    order.charge(next(iter(line.queue)), num_prompt_tokens=50, num_generated=5)
    places = list(line.queue.in_order())
    assert [line.queue.num_ahead_of(sequence) for sequence in places] == list(range(12))
    assert [sequence.key.request_id for sequence in places] == line.served()


def test_who_waits_is_counted_by_lane_and_priority() -> None:
    world = World(num_blocks=4096, max_model_len=4000, tunables={"long_prompt_tokens": 100, "max_running": 1})
    world.submit(submit("runs", max_tokens=3, ignore_eos=True))
    world.submit(*[submit(f"long{i}", prompt=300, priority=5) for i in range(3)], submit("short", priority=-2))
    world.step()
    counts = world.counts()
    assert (counts.num_waiting, counts.num_waiting_long, counts.num_waiting_long_tokens) == (4, 3, 900)
    assert counts.waiting_by_priority == {"5": 3, "-2": 1}
    world.retune(long_prompt_tokens=1000)
    assert (world.counts().num_waiting_long, world.counts().num_waiting_long_tokens) == (0, 0)
    world.abort("long0")
    assert world.counts().waiting_by_priority == {"5": 2, "-2": 1}
    world.run()
    assert (world.counts().num_waiting_long, world.counts().waiting_by_priority) == (0, {})


def test_rare_priorities_are_counted_together() -> None:
    world = World(tunables={"max_running": 1})
    world.submit(submit("runs", max_tokens=3, ignore_eos=True))
    world.submit(*[submit(f"p{level}-{i}", priority=level) for level in range(12) for i in range(level + 1)])
    world.step()
    counts = world.counts().waiting_by_priority
    assert counts == {str(level): level + 1 for level in range(4, 12)} | {"other": 1 + 2 + 3 + 4}
    assert sum(counts.values()) == world.counts().num_waiting
