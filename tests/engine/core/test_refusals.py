"""What never runs: too long, too empty, too late, or after the drain began."""

from __future__ import annotations

import pytest

from serving.contracts.messages import Accepted, Refused
from tests.engine.core.harness import World, step_by_step, submit

pytestmark = pytest.mark.usefixtures("either_runner")


def test_refuses_what_exceeds_the_context_limit_and_names_the_numbers() -> None:
    world = World(num_blocks=1000, max_model_len=1024)
    world.submit(submit("a", prompt=600, max_tokens=600))
    assert [type(event) for event in world.step()] == [Refused]
    ending = world.ending("a")
    assert isinstance(ending, Refused)
    assert ending.code == "context_length_exceeded"
    assert all(number in ending.message for number in ("1024", "600"))


def test_refuses_what_exceeds_the_pool_and_lets_the_short_ones_run() -> None:
    world = World(num_blocks=49, block_size=16, max_model_len=4096)
    world.submit(submit("long", prompt=1002, max_tokens=16))
    world.submit(*[submit(f"s{i}", prompt=10) for i in range(5)])
    world.run(max_steps=20)
    assert world.reason("long") == "context_length_exceeded"
    assert all(world.reason(f"s{i}") in {"stop", "length"} for i in range(5))
    world.check_ended()


def test_what_needs_exactly_the_pool_runs_to_its_end() -> None:
    for spare in (0, 1):
        world = World(num_blocks=49, block_size=16)
        world.submit(submit("a", prompt=49 * 16 - 20, max_tokens=20 - spare, ignore_eos=True), submit("b"))
        world.run()
        assert world.reason("a") == "length"
        world.check_ended()


def test_one_token_more_than_the_pool_is_refused() -> None:
    world = World(num_blocks=49, block_size=16)
    world.submit(submit("a", prompt=49 * 16 - 20, max_tokens=21))
    world.step()
    assert world.reason("a") == "context_length_exceeded"


def test_exactly_the_context_limit_runs_to_its_end() -> None:
    world = World(num_blocks=100, max_model_len=64)
    world.submit(submit("a", prompt=63, max_tokens=1), submit("b", prompt=1, max_tokens=63, ignore_eos=True))
    world.run()
    assert (len(world.tokens("a")), len(world.tokens("b"))) == (1, 63)
    world.check_ended()


def test_refuses_an_empty_prompt(world: World) -> None:
    world.submit(submit("a", prompt=[]), submit("b"))
    world.run()
    assert world.reason("a") == "invalid_value"
    world.check_ended()


def test_refuses_who_waited_too_long() -> None:
    world = World(tunables={"max_running": 1, "max_queue_wait_ms": 1000})
    world.submit(submit("a", max_tokens=50, ignore_eos=True), submit("b"))
    world.step()
    world.now += 0.5
    world.submit(submit("c"), submit("d", waited=0.6))
    world.step()
    world.now += 0.4
    world.step()
    assert world.reason("d") == "queue_timeout"
    world.now += 0.2
    world.step()
    assert world.reason("b") == "queue_timeout"
    assert world.ledger.open_keys == [submit("a").key, submit("c").key]
    world.run()
    world.check_ended()


def test_one_that_an_earlier_attempt_began_keeps_nobody_from_being_refused() -> None:
    world = World(tunables={"max_queue_wait_ms": 1000, "batch_window_ms": 9000})
    world.submit(submit("begun", attempt=2, generated=[5], waited=2.0), submit("new"))
    world.step()
    wakeup = world.engine.next_wakeup()
    assert wakeup is not None
    assert abs(wakeup - (world.now + 1)) < 1e-6
    world.now += 1.5
    world.step()
    assert world.reason("new") == "queue_timeout"
    assert world.ledger.open_keys == [submit("begun").key]
    world.run()
    world.check_ended()


@pytest.mark.parametrize(("own", "seconds", "blamed"), [(0.4, 0.4, "timeout"), (9.0, 1.0, "max_queue_wait_ms")])
def test_the_smaller_of_the_requests_own_timeout_and_the_longest_wait_refuses(
    own: float, seconds: float, blamed: str
) -> None:
    world = World(tunables={"batch_window_ms": 9000, "max_queue_wait_ms": 1000})
    world.submit(submit("a", timeout_seconds=own, waited=0.1))
    world.step()
    wakeup = world.engine.next_wakeup()
    assert wakeup is not None
    assert abs(wakeup - (world.now + seconds - 0.1)) < 1e-6
    world.now = wakeup - 0.001
    world.step()
    assert world.ledger.open_keys == [submit("a").key]
    world.now = wakeup
    world.step()
    ending = world.ending("a")
    assert isinstance(ending, Refused)
    assert ending.code == "queue_timeout"
    assert blamed in ending.message


def test_one_that_came_later_and_may_wait_less_is_refused_before_others() -> None:
    world = World(tunables={"max_running": 1, "max_queue_wait_ms": 1000})
    world.submit(submit("busy", max_tokens=50, ignore_eos=True), submit("patient"))
    world.step()
    world.submit(*[submit(name, timeout_seconds=seconds) for name, seconds in (("b", 0.3), ("c", 0.2), ("d", 0.4))])
    world.engine.abort(submit("c").key, attempt=1)
    world.now += 0.35
    world.step()
    assert (world.reason("b"), world.reason("c")) == ("queue_timeout", "abort")
    assert world.ledger.open_keys == [submit(name).key for name in ("busy", "patient", "d")]
    world.run()
    world.check_ended()


@step_by_step
def test_own_timeout_refuses_nobody_who_began_once() -> None:
    world = World(num_blocks=8, tunables={"max_running": 2})
    world.submit(*[submit(n, prompt=14, max_tokens=10, ignore_eos=True, timeout_seconds=0.5) for n in "ab"])
    world.submit(submit("elsewhere", attempt=2, generated=[5], waited=3.0, timeout_seconds=0.5))
    while world.counts().preemptions_total == 0:
        world.step()
    world.now += 100
    world.run()
    assert [world.reason(name) for name in "ab"] == ["length"] * 2
    assert world.reason("elsewhere") in {"stop", "length"}
    world.check_ended()


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_timeout_that_is_no_positive_number_is_refused(world: World, timeout: float) -> None:
    world.submit(submit("a", timeout_seconds=timeout), submit("b", timeout_seconds=1.0))
    world.run()
    assert world.reason("a") == "invalid_value"
    world.check_ended()


@pytest.mark.parametrize("caching", ["on", "off"])
def test_choices_that_wait_for_one_that_computes_their_prompt_are_not_refused(caching: str) -> None:
    world = World(
        num_blocks=256, tunables={"max_queue_wait_ms": 1000, "max_prefill_chunk": 16, "prefix_caching": caching}
    )
    world.submit(*[submit("many", prompt=400, choice=choice, seed=choice) for choice in range(3)])
    while world.engine.has_work:
        world.now += 0.1
        world.step()
    assert world.counts().prompt_tokens_total < 2 * 400
    assert {world.reason("many", choice) for choice in range(3)} <= {"stop", "length"}
    world.check_ended()


def test_no_choice_is_refused_of_a_request_that_has_begun_and_others_are_none_the_less() -> None:
    world = World(tunables={"max_queue_wait_ms": 1000, "max_running": 1})
    world.submit(*[submit("many", choice=choice, max_tokens=9, ignore_eos=True, seed=choice) for choice in range(2)])
    world.submit(submit("other"))
    world.step()
    world.now += 1.5
    world.submit(submit("many", choice=2, waited=1.2))
    world.step()
    assert world.reason("other") == "queue_timeout"
    world.run()
    assert [world.reason("many", choice) for choice in range(2)] == ["length", "length"]
    assert world.reason("many", 2) in {"stop", "length"}
    world.check_ended()


def test_no_choice_is_refused_of_a_request_that_has_begun_elsewhere() -> None:
    world = World(tunables={"max_queue_wait_ms": 1000, "max_running": 1})
    world.submit(submit("busy", max_tokens=30, ignore_eos=True))
    world.step()
    world.submit(submit("many", choice=0, seed=0), submit("many", choice=1, attempt=2, generated=[5], seed=1))
    world.now += 1.5
    world.run()
    assert {world.reason("many", choice) for choice in range(2)} <= {"stop", "length"}
    world.check_ended()


def test_wakes_up_to_refuse_though_nothing_runs() -> None:
    world = World(tunables={"batch_window_ms": 5000, "max_queue_wait_ms": 300})
    world.submit(submit("a"))
    world.step()
    wakeup = world.engine.next_wakeup()
    assert wakeup is not None
    assert abs(wakeup - (world.now + 0.3)) < 1e-6
    world.run()
    assert world.reason("a") == "queue_timeout"
    assert world.engine.next_wakeup() is None


def test_preempted_sequences_are_not_refused_however_long_they_wait() -> None:
    world = World(num_blocks=8, tunables={"max_queue_wait_ms": 1000})
    world.submit(*[submit(name, prompt=14, max_tokens=10, ignore_eos=True) for name in "ab"])
    while world.counts().preemptions_total == 0:
        world.step()
    world.now += 100
    world.run()
    assert (world.reason("a"), world.reason("b")) == ("length", "length")
    world.check_ended()


def test_draining_refuses_the_new_returns_the_unstarted_and_finishes_the_rest() -> None:
    world = World(num_blocks=8, tunables={"max_running": 2})
    world.submit(*[submit(name, prompt=14, max_tokens=10, ignore_eos=True) for name in "ab"])
    while world.counts().preemptions_total == 0:
        world.step()
    world.submit(submit("c"))
    world.step()
    world.engine.drain()
    world.submit(submit("d"))
    world.step()
    assert (world.reason("c"), world.reason("d")) == ("returned", "draining")
    assert world.counts().state == "draining"
    world.run()
    assert (world.reason("a"), world.reason("b")) == ("length", "length")
    assert not world.engine.has_work
    world.check_ended()


def test_a_drained_engine_takes_work_again_when_it_resumes(world: World) -> None:
    world.submit(submit("a", ignore_eos=True))
    world.step()
    world.engine.drain()
    assert world.counts().state == "draining"
    world.run()
    assert world.counts().state == "drained"
    world.engine.resume()
    assert world.counts().state == "ready"
    world.submit(submit("b"))
    world.run()
    assert world.reason("b") not in {"draining", "returned"}
    world.check_ended()


def test_acceptance_is_said_before_anything_else(world: World) -> None:
    world.submit(submit("a"))
    assert isinstance(world.step()[0], Accepted)


def test_hands_back_whatever_its_state_and_frees_the_memory() -> None:
    world = World(num_blocks=8, tunables={"max_running": 2})
    world.submit(*[submit(name, prompt=14, max_tokens=10, ignore_eos=True) for name in "ab"])
    while world.counts().preemptions_total == 0:
        world.step()
    world.submit(submit("c"))
    world.step()
    for owner_id, event in world.engine.hand_back():
        world.ledger.hear(owner_id, event)
    assert [world.reason(name) for name in "abc"] == ["returned"] * 3
    world.check_ended()
    world.submit(submit("d"))
    world.step()
    assert world.reason("d") == "draining"
    assert not world.engine.has_work
