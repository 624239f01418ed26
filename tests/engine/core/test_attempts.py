"""One key submitted more than once: duplicates, and attempts that go on where an earlier one stopped."""

from __future__ import annotations

import pytest

from serving.contracts.messages import Accepted, Finished, Tokens
from serving.engine.plan import StepPlan
from tests.engine.core.harness import World, run_alone, step_by_step, submit

pytestmark = pytest.mark.usefixtures("either_runner")


def test_a_duplicate_submit_is_ignored(world: World) -> None:
    request = submit("a", max_tokens=10, ignore_eos=True)
    world.submit(request)
    world.engine.submit(request)
    world.step()
    world.engine.submit(request)
    world.run()
    assert len(world.tokens("a")) == 10
    world.check_ended()


def test_a_duplicate_after_the_end_is_ignored(world: World) -> None:
    request = submit("a", max_tokens=3)
    world.submit(request)
    world.run()
    world.engine.submit(request)
    assert world.step() == []
    assert not world.engine.has_work


def test_an_older_attempt_that_comes_late_is_ignored(world: World) -> None:
    world.submit(submit("a", attempt=2, max_tokens=5, ignore_eos=True))
    world.engine.submit(submit("a", attempt=1, max_tokens=5, ignore_eos=True))
    events = world.step()
    assert [event.attempt for event in events if isinstance(event, Accepted)] == [2]
    world.run()
    world.check_ended()


@step_by_step
def test_a_newer_attempt_takes_the_older_ones_place(world: World) -> None:
    first = submit("a", max_tokens=12, ignore_eos=True)
    world.submit(first)
    world.step(4)
    delivered = world.tokens("a")[:2]
    world.submit(submit("a", max_tokens=12, ignore_eos=True, attempt=2, generated=delivered))
    events = world.step()
    assert {event.attempt for event in events} == {2}
    assert [event.start_index for event in events if isinstance(event, Tokens)] == [2]
    world.run()
    assert len(world.tokens("a")) == 12
    world.check_ended()


def test_a_newer_attempt_takes_over_while_the_olders_step_is_in_flight(world: World) -> None:
    world.submit(submit("a", max_tokens=12, ignore_eos=True))
    world.step(2)

    def resubmit(plan: StepPlan) -> None:
        world.submit(submit("a", max_tokens=12, ignore_eos=True, attempt=2))

    world.runner.before_run = resubmit
    assert {type(event) for event in world.step()} == {Accepted}
    world.runner.before_run = None
    world.run()
    world.check_ended()


def test_delivered_tokens_are_context_and_count_towards_the_end(world: World) -> None:
    request = submit("a", max_tokens=30, ignore_eos=True)
    whole, _ = run_alone(request)
    world.submit(submit("a", max_tokens=30, ignore_eos=True, attempt=2, generated=whole[:17]))
    world.run()
    ending = world.ending("a")
    assert isinstance(ending, Finished)
    assert (ending.reason, ending.num_generated) == ("length", 30)
    assert world.tokens("a") == whole
    assert world.counts().generated_tokens_total == 13
    assert world.counts().prompt_tokens_total == len(request.prompt_ids)


def test_an_attempt_whose_last_token_was_delivered_ends_without_a_step(world: World) -> None:
    whole, _ = run_alone(submit("a", max_tokens=6, ignore_eos=True))
    world.submit(submit("a", max_tokens=6, ignore_eos=True, attempt=2, generated=whole))
    world.submit(submit("b", max_tokens=6, attempt=2, generated=[5, 0]))
    events = world.step()
    assert [type(event) for event in events] == [Accepted, Finished] * 2
    assert (world.reason("a"), world.reason("b")) == ("length", "stop")
    assert world.runner.plans == []
    world.check_ended()
