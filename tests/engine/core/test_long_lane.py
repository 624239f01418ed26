"""Long prompts beside short ones: who overtakes whom, and that both come to their end."""

from __future__ import annotations

import pytest

from serving.engine.long_lane import PATIENCE_SECONDS
from tests.engine.core.harness import World, step_by_step, submit

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("either_runner")]


def _world(*, num_blocks: int = 4096, **changes: object) -> World:
    tunables = {"long_prompt_tokens": 100, "max_batch_tokens": 64, "max_prefill_chunk": 64, **changes}
    return World(num_blocks=num_blocks, max_model_len=20_000, tunables=tunables)


def _num_long_in_prefill(world: World) -> int:
    return sum(chunk.is_prefill and chunk.key.request_id.startswith("long") for chunk in world.plan.chunks)


@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("most", [1, 2])
def test_no_more_long_prompts_are_in_prefill_than_may_be(order: str, most: int) -> None:
    world = _world(order=order, max_long_prefills=most)
    world.submit(*[submit(f"long{i}", prompt=300, max_tokens=3, tenant=f"t{i % 3}") for i in range(7)])
    begun: set[str] = set()
    while world.engine.has_work:
        world.step()
        begun |= {chunk.key.request_id for chunk in world.plan.chunks if chunk.is_prefill}
        unfinished = {name for name in begun if not world.tokens(name)}
        assert len(unfinished) <= most
    assert len(begun) == 7
    world.check_ended()


@pytest.mark.parametrize("most", [1, 2, 4])
def test_short_prompts_overtake_the_long_that_wait(most: int) -> None:
    world = _world(max_running=32, max_long_prefills=most)
    world.submit(*[submit(f"long{i}", prompt=1000, max_tokens=3) for i in range(most + 1)])
    world.step()
    world.submit(*[submit(f"s{i}", prompt=10, max_tokens=3) for i in range(8)])
    world.step(3)
    assert all(world.tokens(f"s{i}") for i in range(8))
    assert not world.tokens("long0")
    world.run()
    world.check_ended()


def test_the_long_keep_their_order_among_themselves() -> None:
    world = _world()
    world.submit(*[submit(f"long{i}", prompt=200 + i, max_tokens=2, ignore_eos=True) for i in range(4)])
    ended = []
    while world.engine.has_work:
        ended += [event.key.request_id for event in world.step() if event.key in world.ledger.endings]
    assert list(dict.fromkeys(ended)) == [f"long{i}" for i in range(4)]


@step_by_step
def test_a_long_prompt_does_not_keep_short_ones_from_their_prefill() -> None:
    """C77, first half: one prompt of 8,000 tokens and 20 short ones."""
    world = _world(max_batch_tokens=512, max_prefill_chunk=512)
    world.submit(submit("long", prompt=8000, max_tokens=4))
    world.step()
    world.submit(*[submit(f"s{i}", prompt=20, max_tokens=4) for i in range(20)])
    world.step(2)
    assert all(world.tokens(f"s{i}") for i in range(20))
    world.step(20)
    assert world.tokens("long")
    world.run()
    world.check_ended()


@pytest.mark.parametrize("short", [16, 90])
def test_a_long_prompt_ends_under_a_steady_flood_of_short_ones(short: int) -> None:
    """C77, second half: the short ones alone would take every token of every step."""
    world = _world(max_running=64)
    world.submit(submit("long", prompt=800, max_tokens=2, ignore_eos=True))
    steps = 0
    while not world.tokens("long"):
        # As many short prompts as a step has tokens for.
        world.submit(*[submit(f"s{steps}.{i}", prompt=short, max_tokens=1) for i in range(4)])
        world.step()
        steps += 1
        assert steps <= 800 // 16 + 2, "less than a fourth of the steps' tokens went to the long prompt"
    assert steps > 800 // 64 + 10, "the short ones had no advantage"
    world.run()
    world.check_ended()


def test_both_lanes_go_on_where_decodes_leave_prefill_a_token_a_step() -> None:
    world = _world(num_blocks=1700, max_running=40, max_batch_tokens=1024)
    world.submit(*[submit(f"d{i}", max_tokens=300, ignore_eos=True) for i in range(30)])
    world.step()
    world.retune(max_batch_tokens=16, prefill_share=0.0)
    world.submit(submit("long", prompt=101, max_tokens=2))
    num_short = 0
    while not world.tokens("long"):
        if len(world.ledger.open_keys) < 34:
            num_short += 1
            world.submit(submit(f"s{num_short}", prompt=6, max_tokens=1))
        world.step()
        assert world.plan.num_prefill_tokens == 1
        assert len(world.runner.plans) <= 4 * 101 + 8
    assert num_short > 20
    world.run()
    world.check_ended()


def test_short_prompts_take_the_memory_that_a_long_one_lacks_until_it_has_waited_long() -> None:
    world = _world(num_blocks=64, max_prefill_chunk=64, prefix_caching="off")
    world.submit(submit("d", prompt=60, max_tokens=150, ignore_eos=True))
    world.step(2)
    world.submit(submit("long", prompt=200, max_tokens=2))
    world.step()
    world.submit(submit("early", prompt=8, max_tokens=2))
    world.step(2)
    assert world.tokens("early")
    world.now += PATIENCE_SECONDS
    world.submit(submit("late", prompt=8, max_tokens=2))
    while "long" not in world.members():
        assert "late" not in world.members()
        world.step()
    world.run()
    world.check_ended()


def test_a_flood_of_short_ones_cannot_keep_the_memory_from_a_long_one_for_ever() -> None:
    world = _world(num_blocks=64, max_running=64)
    world.submit(*[submit(f"s{i}", prompt=12, max_tokens=8, ignore_eos=True) for i in range(12)])
    world.step()
    world.submit(submit("long", prompt=200, max_tokens=2))
    for i in range(300):
        world.submit(submit(f"t{i}", prompt=12, max_tokens=8, ignore_eos=True))
        world.now += 0.1
        world.step()
        if world.tokens("long"):
            break
    assert 9 * PATIENCE_SECONDS < i < 14 * PATIENCE_SECONDS
    world.run()
    world.check_ended()


def test_a_long_one_that_waits_for_the_lane_holds_nobody_up_however_long() -> None:
    world = _world()
    world.submit(*[submit(f"long{i}", prompt=2000, max_tokens=2) for i in range(2)])
    world.step()
    world.now += 10 * PATIENCE_SECONDS / 2
    world.submit(submit("s", prompt=8, max_tokens=2))
    world.step(2)
    assert world.tokens("s")


def test_a_preempted_long_one_takes_the_lane_again() -> None:
    world = _world(num_blocks=90, prefix_caching="off")
    world.submit(submit("a", prompt=90, max_tokens=150, ignore_eos=True))
    world.step(2)
    world.submit(submit("long1", prompt=180, max_tokens=80, ignore_eos=True))
    while world.counts().preemptions_total == 0:
        world.step()
    world.submit(submit("long2", prompt=110, max_tokens=2))
    while world.engine.has_work:
        world.step()
        assert _num_long_in_prefill(world) <= 1
    restarts = [c for plan in world.runner.plans for c in plan.chunks if c.start == 0 and c.key.request_id == "long1"]
    assert len(restarts) > 1
    world.check_ended()


def test_the_lane_is_for_what_is_still_to_be_computed() -> None:
    world = _world()
    prompt = list(range(1, 900))
    world.submit(submit("long0", prompt=prompt, max_tokens=2))
    world.run()
    world.submit(submit("long1", prompt=list(range(2000, 4000)), max_tokens=2))
    world.step()
    world.submit(submit("known", prompt=[*prompt, 5, 6, 7], max_tokens=2))
    world.step(2)
    assert world.tokens("known")
    assert not world.tokens("long1")
    world.run()
    world.check_ended()


@step_by_step
def test_what_became_cached_while_it_waited_needs_no_lane() -> None:
    world = _world()
    prompt = list(range(1, 900))
    world.submit(submit("long0", prompt=prompt, max_tokens=2), submit("long1", prompt=2000, max_tokens=2))
    world.submit(submit("twin", prompt=[*prompt, 5, 6, 7], max_tokens=2))
    while not world.tokens("long0"):
        world.step()
        assert "twin" not in world.members()
    world.step(4)
    assert world.tokens("twin")
    assert not world.tokens("long1")
    world.run()
    world.check_ended()


def test_what_is_no_longer_cached_when_it_is_named_needs_the_lane() -> None:
    world = _world()
    prompt = list(range(1, 900))
    world.submit(submit("first", prompt=prompt, max_tokens=2))
    world.run()
    world.submit(*[submit(f"long{i}", prompt=[*prompt, i], max_tokens=2) for i in range(6)])
    world.retune(prefix_caching="off")
    while world.engine.has_work:
        world.step()
        assert _num_long_in_prefill(world) <= 1
    world.check_ended()


def test_what_was_evicted_while_it_waited_needs_the_lane() -> None:
    world = _world(num_blocks=400, max_batch_tokens=512)
    prompts = [list(range(1000 * i, 1000 * i + 200)) for i in range(1, 5)]
    for prompt in prompts:
        world.submit(submit(f"first{prompt[0]}", prompt=prompt, max_tokens=1))
    world.run()
    world.retune(max_running=1)
    world.submit(submit("busy", max_tokens=9, ignore_eos=True))
    world.step()
    world.submit(*[submit(f"long{prompt[0]}", prompt=[*prompt, 5], max_tokens=2) for prompt in prompts])
    # It takes nearly all of the memory.
    world.submit(submit("big", prompt=1500, max_tokens=1, waited=5.0))
    while not world.tokens("big"):
        world.step()
    world.retune(max_running=32)
    most = 0
    while world.engine.has_work:
        world.step()
        most = max(most, _num_long_in_prefill(world))
    assert most == 1
    world.check_ended()


def test_the_bound_of_what_is_long_changes_for_those_that_wait() -> None:
    world = _world(max_running=32)
    world.submit(*[submit(f"p{i}", prompt=150, max_tokens=2) for i in range(4)])
    world.step()
    assert world.counts().num_running == 1
    world.retune(long_prompt_tokens=150, max_batch_tokens=1024)
    world.step()
    assert world.counts().num_running == 4
    world.run()
    world.check_ended()


def test_more_long_ones_start_when_the_lane_is_widened_and_none_is_thrown_out_when_it_narrows() -> None:
    world = _world(max_batch_tokens=256)
    world.submit(*[submit(f"long{i}", prompt=1000, max_tokens=2) for i in range(5)])
    world.step()
    assert world.counts().num_running == 1
    world.retune(max_long_prefills=3)
    world.step()
    assert world.counts().num_running == 3
    world.retune(max_long_prefills=1)
    world.step()
    assert world.counts().num_running == 3
    world.run()
    world.check_ended()


def test_a_static_batch_has_no_lanes() -> None:
    world = _world(mode="static", max_running=3)
    world.submit(*[submit(f"long{i}", prompt=150, max_tokens=2) for i in range(3)])
    world.step()
    assert world.counts().num_running == 3
    world.run()
    world.check_ended()
