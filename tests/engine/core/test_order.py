"""Who is served first, by arrival and by priority, and that changing the order re-ranks all that wait and run."""

from __future__ import annotations

import math

import pytest

from serving.contracts.messages import Refused
from serving.engine.order import AGEING_SECONDS
from tests.engine.core.harness import World, step_by_step, submit

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("either_runner")]

ORDERS = ["fcfs", "priority", "fair"]


def _one_place(order: str, **tunables: object) -> World:
    """One sequence runs, so that others queue up behind it."""
    world = World(num_blocks=256, tunables={"order": order, "max_running": 1, **tunables})
    world.submit(submit("first", max_tokens=3, ignore_eos=True, tenant="first"))
    world.step()
    return world


def _starts(world: World) -> list[str]:
    """The requests in the order in which they were first computed, but for the one that ran from the beginning."""
    world.run()
    world.check_ended()
    seen: list[str] = []
    for plan in world.runner.plans:
        for chunk in sorted(plan.chunks, key=lambda chunk: not chunk.is_prefill):
            if chunk.key.request_id not in [*seen, "first"]:
                seen.append(chunk.key.request_id)
    return seen


@pytest.mark.parametrize(("order", "kept"), [("fcfs", {"a", "b"}), ("priority", {"c", "d"}), ("fair", {"a", "d"})])
def test_who_is_least_deserving_is_handed_back_when_others_join(order: str, kept: set[str]) -> None:
    world = _one_place(order)
    world.submit(submit("a", tenant="one"), submit("b", tenant="first"))
    world.submit(submit("c", tenant="first", priority=-5), submit("d", tenant="two", priority=-5))
    world.step()
    world.retune(max_running=3)
    world.engine.share()
    for owner_id, event in world.engine.take_events():
        world.ledger.hear(owner_id, event)
    assert {key.request_id for key in world.ledger.open_keys} == {"first", *kept}
    world.run()


def test_first_come_first_served_knows_no_urgency() -> None:
    world = _one_place("fcfs")
    for name, priority in zip("abcd", (5, 0, -5, 1), strict=True):
        world.submit(submit(name, priority=priority, max_tokens=2, ignore_eos=True))
        world.now += 0.01
    assert _starts(world) == ["a", "b", "c", "d"]


def test_the_more_urgent_go_first_and_equals_by_arrival() -> None:
    world = _one_place("priority")
    for name, priority in zip("abcde", (1, 0, -5, 1, 0), strict=True):
        world.submit(submit(name, priority=priority, max_tokens=2, ignore_eos=True))
        world.now += 0.01
    assert _starts(world) == ["c", "b", "e", "a", "d"]


@pytest.mark.parametrize(("waited", "first"), [(0.9, "urgent"), (1.1, "patient")])
def test_waiting_makes_up_for_urgency(waited: float, first: str) -> None:
    world = _one_place("priority")
    world.submit(submit("patient", priority=2, max_tokens=2, waited=2 * AGEING_SECONDS * waited))
    world.submit(submit("urgent", priority=0, max_tokens=2))
    assert _starts(world)[0] == first


def test_no_flood_of_urgent_requests_starves_another() -> None:
    world = _one_place("priority")
    world.submit(submit("patient", priority=1, max_tokens=2))
    num_urgent = 0
    while not world.tokens("patient"):
        num_urgent += 1
        assert num_urgent < 100
        world.submit(submit(f"u{num_urgent}", priority=0, max_tokens=4, ignore_eos=True))
        world.now += 1.0
        world.step(3)
    assert num_urgent > 5
    world.run()
    world.check_ended()


def test_the_least_urgent_gives_way() -> None:
    world = World(num_blocks=9, tunables={"order": "priority"})
    for name, priority in zip("abc", (1, 2, 0), strict=True):
        world.submit(submit(name, prompt=11, max_tokens=12, ignore_eos=True, priority=priority))
    while world.counts().preemptions_total == 0:
        world.step()
    assert set(world.members()) == {"a", "c"}
    world.run()
    world.check_ended()


@step_by_step
def test_a_change_of_order_ranks_the_waiting_anew() -> None:
    world = _one_place("fcfs")
    for name, priority, tenant in (("a", 1, "x"), ("b", 0, "x"), ("c", -1, "x"), ("d", 3, "y"), ("e", 2, "x")):
        world.submit(submit(name, priority=priority, tenant=tenant, max_tokens=3, ignore_eos=True))
        world.now += 0.01
    world.retune(order="priority")
    world.step(3)
    assert set(world.members()) == {"c"}
    world.retune(order="fair")
    # Both tenants start from nothing; c's tenant is served while its last tokens are computed.
    world.step(3)
    assert set(world.members()) == {"d"}
    world.retune(order="fcfs")
    assert _starts(world) == ["c", "d", "a", "b", "e"]


def test_a_change_of_order_decides_who_of_the_running_gives_way() -> None:
    world = World(num_blocks=9, tunables={"order": "fcfs"})
    for name, priority in zip("abc", (2, 0, 1), strict=True):
        world.submit(submit(name, prompt=11, max_tokens=12, ignore_eos=True, priority=priority))
    world.step()
    world.retune(order="priority")
    while world.counts().preemptions_total == 0:
        world.step()
    assert set(world.members()) == {"b", "c"}
    world.run()
    world.check_ended()


@pytest.mark.parametrize("priority", [101, -101, 2**40])
def test_refuses_a_priority_out_of_range(priority: int) -> None:
    world = World()
    world.submit(submit("a", priority=priority), submit("b", priority=100), submit("c", priority=-100))
    world.run()
    ending = world.ending("a")
    assert isinstance(ending, Refused)
    assert (ending.code, "priority" in ending.message) == ("invalid_value", True)
    assert {world.reason("b"), world.reason("c")} <= {"stop", "length"}


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_refuses_a_weight_that_is_no_positive_number(weight: float) -> None:
    world = World(tunables={"order": "fair"})
    world.submit(submit("a", weight=weight), submit("b", weight=1e-300), submit("c", weight=1e300))
    world.run()
    ending = world.ending("a")
    assert isinstance(ending, Refused)
    assert (ending.code, "weight" in ending.message) == ("invalid_value", True)
    assert {world.reason("b"), world.reason("c")} <= {"stop", "length"}


@pytest.mark.parametrize("order", ORDERS)
def test_a_queue_of_thousands_is_served_whole_whatever_changes(order: str) -> None:
    world = World(num_blocks=512, tunables={"order": order, "max_running": 64, "max_batch_tokens": 4096})
    world.submit(
        *[
            submit(f"r{i}", prompt=2 + i % 5, max_tokens=1 + i % 3, tenant=f"t{i % 7}", priority=i % 4)
            for i in range(2000)
        ]
    )
    world.step(3)
    for other in (*ORDERS, order):
        world.retune(order=other, long_prompt_tokens=3)
        world.step()
    world.run()
    world.check_ended()
