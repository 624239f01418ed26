"""Waiting for company: how long, and what ends it early."""

from __future__ import annotations

import pytest

from serving.contracts.ids import RequestId
from serving.contracts.messages import SequenceKey
from serving.contracts.tunables import Tunables
from serving.engine.plan import StepResult
from serving.engine.scheduler import Scheduler
from tests.engine.core.harness import World, step_by_step, submit
from tests.engine.core.runners import EOS

pytestmark = pytest.mark.usefixtures("either_runner")


@pytest.fixture
def windowed() -> World:
    return World(num_blocks=256, tunables={"batch_window_ms": 250, "max_running": 4, "max_batch_tokens": 64})


def test_the_oldest_waits_its_window_and_company_goes_with_it(windowed: World) -> None:
    windowed.submit(submit("a"))
    windowed.step()
    assert windowed.engine.next_wakeup() == windowed.now + 0.25
    windowed.now += 0.125
    windowed.submit(submit("b"))
    windowed.step()
    assert windowed.counts().num_running == 0
    windowed.now += 0.125
    windowed.step()
    assert set(windowed.members()) == {"a", "b"}


def test_the_step_at_the_wakeup_runs(windowed: World) -> None:
    windowed.submit(submit("a"))
    windowed.step()
    wakeup = windowed.engine.next_wakeup()
    assert wakeup is not None
    windowed.now = wakeup
    windowed.step()
    assert windowed.counts().num_running == 1


def test_ends_early_when_the_waiting_fill_the_places(windowed: World) -> None:
    windowed.submit(*[submit(f"r{i}", prompt=2) for i in range(3)])
    windowed.step()
    assert windowed.counts().num_running == 0
    windowed.submit(submit("r3", prompt=2))
    windowed.step()
    assert windowed.counts().num_running == 4


def test_ends_early_when_the_waiting_fill_the_token_budget(windowed: World) -> None:
    windowed.submit(submit("a", prompt=40))
    windowed.step()
    assert windowed.counts().num_running == 0
    windowed.submit(submit("b", prompt=30))
    windowed.step()
    assert set(windowed.members()) == {"a", "b"}


def test_ends_early_when_no_more_company_would_fit_in_memory() -> None:
    world = World(num_blocks=8, tunables={"batch_window_ms": 100})
    world.submit(submit("a", prompt=16, max_tokens=4), submit("b", prompt=16, max_tokens=4))
    world.step()
    assert set(world.members()) == {"a", "b"}


def test_what_is_cached_of_a_prompt_fills_no_budget(windowed: World) -> None:
    prompt = list(range(1, 82))
    windowed.submit(submit("first", prompt=prompt, max_tokens=1))
    windowed.run()
    windowed.submit(submit("a", prompt=prompt), submit("b", prompt=prompt))
    windowed.step()
    assert windowed.counts().num_running == 0
    windowed.submit(submit("c", prompt=63))
    windowed.step()
    assert set(windowed.members()) == {"a", "b", "c"}


@pytest.mark.parametrize("caching", ["on", "off"])
def test_what_choices_share_fills_budget_and_memory_once(caching: str) -> None:
    tunables = {"batch_window_ms": 250, "max_batch_tokens": 64, "prefix_caching": caching}
    world = World(num_blocks=12, tunables=tunables)
    world.submit(*[submit("many", prompt=10, choice=choice, seed=choice) for choice in range(8)])
    world.step()
    # 10 tokens, and 7 times the 2 that are in no full block; 3 blocks, and 7 more.
    assert world.counts().num_running == 0
    world.submit(submit("b", prompt=8))
    world.step()
    assert set(world.members()) == {"many", "b"}
    world.run()
    world.check_ended()


def test_what_a_running_choice_computes_fills_no_budget_for_the_others() -> None:
    tunables = {"batch_window_ms": 250, "max_batch_tokens": 64, "max_prefill_chunk": 16}
    world = World(num_blocks=256, tunables=tunables)
    first, *others = [submit("many", prompt=42, choice=choice, seed=choice) for choice in range(8)]
    world.submit(first)
    world.now += 0.25
    world.step()
    world.submit(*others, submit("b"))
    world.step()
    assert set(world.members()) == {"many"}
    world.run()
    world.check_ended()


def test_choices_of_a_static_batch_fill_the_budget_each() -> None:
    tunables = {"batch_window_ms": 250, "max_batch_tokens": 64, "mode": "static", "max_running": 16}
    world = World(num_blocks=256, tunables=tunables)
    world.submit(*[submit("many", prompt=10, choice=choice, seed=choice) for choice in range(7)])
    world.step()
    assert world.counts().num_running == 7


def test_blocks_that_others_hold_fill_no_memory() -> None:
    world = World(num_blocks=24, tunables={"batch_window_ms": 250})
    prompt = list(range(1, 62))
    world.submit(submit("first", prompt=prompt, max_tokens=20, ignore_eos=True, waited=1.0))
    world.step()
    world.submit(submit("a", prompt=prompt))
    world.step()
    assert set(world.members()) == {"first"}
    world.now += 0.25
    world.step()
    assert set(world.members()) == {"first", "a"}
    world.run()
    world.check_ended()


def test_joins_during_decode_obey_the_window(windowed: World) -> None:
    windowed.submit(submit("a", max_tokens=50, ignore_eos=True))
    windowed.now += 0.25
    windowed.step()
    windowed.submit(submit("b"))
    windowed.step()
    assert set(windowed.members()) == {"a"}
    windowed.now += 0.25
    windowed.step()
    assert set(windowed.members()) == {"a", "b"}


def test_static_batches_form_when_the_window_ends(windowed: World) -> None:
    windowed.retune(mode="static")
    windowed.submit(submit("a"))
    windowed.step()
    windowed.now += 0.125
    windowed.submit(submit("b"))
    windowed.step()
    assert windowed.counts().num_running == 0
    windowed.now += 0.125
    windowed.step()
    assert set(windowed.members()) == {"a", "b"}


def test_time_waited_elsewhere_counts(windowed: World) -> None:
    windowed.submit(submit("a", waited=0.25))
    windowed.step()
    assert windowed.counts().num_running == 1


def test_no_window_means_no_wait(world: World) -> None:
    world.submit(submit("a"))
    world.step()
    assert world.counts().num_running == 1


def test_preempted_sequences_wait_for_no_company() -> None:
    world = World(num_blocks=8)
    world.submit(
        submit("a", prompt=14, max_tokens=10, ignore_eos=True), submit("b", prompt=14, max_tokens=10, ignore_eos=True)
    )
    while world.counts().preemptions_total == 0:
        world.step()
    world.retune(batch_window_ms=10_000)
    world.submit(submit("late", max_tokens=1))
    world.abort("a")
    world.step()
    assert set(world.members()) == {"b"}
    assert world.tokens("late") == []
    world.run()
    world.check_ended()


def test_wakes_up_for_a_preempted_sequence_though_others_wait_for_company() -> None:
    tunables = Tunables(kv_watermark_ratio=0.0)
    scheduler = Scheduler(
        num_blocks=8, block_size=4, max_model_len=64, eos_token_ids=frozenset({EOS}), tunables=tunables
    )
    for name in "ab":
        scheduler.add(submit(name, prompt=14, max_tokens=10, ignore_eos=True), 0.0)
    while not scheduler.preempted_keys:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        scheduler.update(plan, StepResult([[5] for _ in plan.chunks]), 0.0)
    scheduler.retune(tunables.changed({"batch_window_ms": 10_000}))
    scheduler.add(submit("late"), 0.0)
    scheduler.abort(SequenceKey(RequestId("a"), 0), 0.0, attempt=1)
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 2)
    assert scheduler.next_wakeup(1.0) == 1.0


@pytest.mark.parametrize("mode", ["continuous", "static"])
@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
def test_the_window_is_the_oldests_whatever_the_order(windowed: World, mode: str, order: str) -> None:
    windowed.retune(mode=mode, order=order, max_running=2)
    windowed.submit(submit("oldest", priority=5, tenant="a"))
    windowed.step()
    windowed.now += 0.2
    windowed.retune(max_running=3)
    windowed.submit(submit("urgent", priority=-100, tenant="b"))
    windowed.step()
    assert windowed.counts().num_running == 0
    assert windowed.engine.next_wakeup() == pytest.approx(windowed.now + 0.05)
    windowed.now += 0.05
    windowed.step()
    assert set(windowed.members()) == {"oldest", "urgent"}
    windowed.run()
    windowed.check_ended()


def test_long_prompts_beyond_their_lane_fill_no_places() -> None:
    world = World(num_blocks=4096, tunables={"batch_window_ms": 250, "max_running": 4, "long_prompt_tokens": 20})
    world.submit(*[submit(f"long{i}", prompt=40, max_tokens=2) for i in range(4)])
    world.step()
    assert world.counts().num_running == 0
    world.submit(*[submit(f"s{i}", prompt=4, max_tokens=2) for i in range(3)])
    world.step()
    assert set(world.members()) == {"long0", "s0", "s1", "s2"}
    world.run()
    world.check_ended()


def test_a_static_batch_of_long_prompts_fills_its_places() -> None:
    tunables = {"batch_window_ms": 250, "max_running": 3, "long_prompt_tokens": 20, "mode": "static"}
    world = World(num_blocks=4096, tunables=tunables)
    world.submit(*[submit(f"long{i}", prompt=40, max_tokens=2) for i in range(3)])
    world.step()
    assert world.counts().num_running == 3


@step_by_step
@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_the_engine_is_awake_just_when_it_can_compute(mode: str, order: str) -> None:
    tunables = {"batch_window_ms": 100, "order": order, "mode": mode, "long_prompt_tokens": 10, "max_running": 3}
    world = World(num_blocks=64, tunables=tunables)
    num_idle = 0
    for i in range(12):
        world.submit(submit(f"r{i}", prompt=6 + 3 * (i % 4), max_tokens=2, tenant=f"t{i % 3}", priority=i % 2))
        world.engine.take_events()
        world.now += 0.03
        wakeup = world.engine.next_wakeup()
        assert wakeup is not None
        before = len(world.runner.plans)
        world.engine.step()
        assert (wakeup <= world.now) == (len(world.runner.plans) > before)
        num_idle += wakeup > world.now
    assert num_idle > 0
