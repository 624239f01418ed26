"""Aborting in every state, before and after a sequence's life; the others never notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from serving.contracts.ids import OwnerId
from serving.contracts.messages import Finished
from serving.engine.plan import StepPlan
from tests.engine.core.harness import World, step_by_step, submit

pytestmark = pytest.mark.usefixtures("either_runner")


def _waiting(world: World) -> None:
    world.retune(max_running=1)
    world.submit(submit("other", max_tokens=30, ignore_eos=True), submit("a"))
    world.step()
    assert world.counts().num_waiting == 1


def _mid_prefill(world: World) -> None:
    world.submit(submit("other", max_tokens=30, ignore_eos=True), submit("a", prompt=40))
    world.step(2)
    assert world.plan.chunks[-1].key.request_id == "a"
    assert not world.plan.chunks[-1].samples


def _decoding(world: World) -> None:
    world.submit(submit("other", max_tokens=30, ignore_eos=True), submit("a", max_tokens=20, ignore_eos=True))
    world.step(4)
    assert world.tokens("a")


def _preempted(world: World) -> None:
    world.submit(
        submit("other", prompt=14, max_tokens=40, ignore_eos=True),
        submit("a", prompt=24, max_tokens=30, ignore_eos=True),
    )
    while world.counts().preemptions_total == 0:
        world.step()
    assert "a" not in world.members()


@pytest.mark.parametrize("reach", [_waiting, _mid_prefill, _decoding, _preempted])
def test_aborts_in_any_state(reach: Callable[[World], None]) -> None:
    world = World(num_blocks=16, tunables={"max_prefill_chunk": 8})
    reach(world)
    world.abort("a")
    world.abort("a")
    world.step()
    assert world.reason("a") == "abort"
    assert "a" not in world.members()
    world.run()
    assert world.reason("other") == "length"
    world.check_ended()


@step_by_step
@pytest.mark.parametrize("last", [False, True])
def test_aborts_while_its_step_is_in_flight(last: bool) -> None:
    world = World(num_blocks=64)
    world.submit(submit("a", max_tokens=3 if last else 20, ignore_eos=True), submit("b", max_tokens=9, ignore_eos=True))
    world.step(2)

    def abort(plan: StepPlan) -> None:
        world.abort("a")

    world.runner.before_run = abort
    world.step()
    assert world.reason("a") == "abort"
    assert len(world.tokens("a")) == 2
    world.runner.before_run = None
    world.run()
    world.check_ended()


def test_aborting_what_has_finished_says_nothing(world: World) -> None:
    world.submit(submit("a", max_tokens=2, ignore_eos=True))
    world.run()
    world.abort("a")
    assert world.step() == []
    assert world.reason("a") == "length"


def test_every_way_to_end_frees_each_block_once(world: World) -> None:
    world.submit(
        submit("eos", max_tokens=500),
        submit("length", max_tokens=5, ignore_eos=True),
        submit("stop", max_tokens=500, ignore_eos=True, stop_token_ids=tuple(range(1, 20))),
        submit("a", max_tokens=500, ignore_eos=True),
    )
    world.step(3)
    world.abort("a")
    world.run()
    assert [world.reason(name) for name in ("eos", "length", "stop", "a")] == ["stop", "length", "stop", "abort"]
    world.check_ended()


def test_an_abort_that_comes_before_its_submits_ends_them_all(world: World) -> None:
    world.abort("a", 0, 1, 2)
    world.submit(*[submit("a", choice=i) for i in range(3)], submit("b"))
    events = world.step()
    assert [event.reason for event in events if isinstance(event, Finished) and event.key.request_id == "a"] == [
        "abort"
    ] * 3
    assert set(world.members()) == {"b"}
    world.run()
    world.check_ended()


def test_remembers_the_last_ten_thousand_aborts_and_no_more(world: World) -> None:
    for i in range(10_001):
        world.abort(f"gone{i}")
    world.submit(submit("gone0", max_tokens=1), submit("gone1"), submit("gone10000"))
    world.run()
    assert [world.reason(name) for name in ("gone0", "gone1", "gone10000")] == ["length", "abort", "abort"]


def test_an_abort_of_an_older_attempt_leaves_the_newer_one_alone(world: World) -> None:
    world.submit(submit("a", attempt=2, max_tokens=9, ignore_eos=True))
    world.step(2)
    world.abort("a", attempt=1)
    world.engine.submit(submit("a", attempt=1, max_tokens=9, ignore_eos=True))
    world.run()
    assert world.reason("a") == "length"
    world.check_ended()


def test_aborts_one_choice_and_leaves_the_others_alone(world: World) -> None:
    world.abort("a", 2)
    world.submit(*[submit("a", choice=i, seed=i, max_tokens=9, ignore_eos=True) for i in range(3)])
    world.step(2)
    world.abort("a", 0)
    world.run()
    assert [world.reason("a", i) for i in range(3)] == ["abort", "length", "abort"]
    world.check_ended()


def test_aborts_what_a_lost_owner_left(world: World) -> None:
    gone = OwnerId("gone")
    world.submit(*[submit(f"g{i}", owner=gone, max_tokens=50, ignore_eos=True) for i in range(3)], submit("b"))
    world.step()
    world.engine.abort_owner(gone)
    world.step()
    assert [world.reason(f"g{i}") for i in range(3)] == ["abort"] * 3
    assert set(world.members()) == {"b"}
    world.run()
    world.check_ended()


def test_a_mass_abort_leaves_the_counts_at_zero(world: World) -> None:
    world.submit(*[submit(f"r{i}", max_tokens=50, ignore_eos=True) for i in range(200)])
    world.step(3)
    for i in range(200):
        world.abort(f"r{i}")
    world.step()
    world.check_ended()
    assert world.engine.next_wakeup() is None
