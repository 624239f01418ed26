"""What is cached takes memory from nobody, is dropped by a lever, and is counted apart from what is in use."""

from __future__ import annotations

import pytest

from serving.contracts.messages import Finished
from tests.engine.core.harness import World, step_by_step, submit
from tests.engine.core.prefixes import hits, prefix_and, starts_of

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("either_runner")]


def test_cached_blocks_are_told_apart_from_those_in_use(world: World) -> None:
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=2, ignore_eos=True))
    world.step()
    counts = world.counts()
    assert (counts.kv_blocks_used, counts.kv_blocks_cached) == (6, 0)
    world.run()
    counts = world.counts()
    assert (counts.kv_blocks_used, counts.kv_blocks_cached, counts.kv_blocks_free) == (0, 5, 2043)


def test_what_is_cached_keeps_nobody_waiting() -> None:
    world = World(num_blocks=8)
    world.submit(submit("a", prompt=30, max_tokens=2, ignore_eos=True))
    world.run()
    assert world.counts().kv_blocks_cached == 7
    world.submit(submit("b", prompt=30, max_tokens=2, ignore_eos=True))
    world.step()
    assert (world.counts().num_running, world.counts().kv_blocks_used) == (1, 8)
    world.run()
    assert world.counts().preemptions_total == 0
    world.check_ended()


def test_a_hit_that_nobody_holds_takes_its_room() -> None:
    world = World(num_blocks=16, tunables={"kv_limit_ratio": 0.75})
    world.submit(submit("gone", prompt=prefix_and(1), max_tokens=1))
    world.run()
    world.submit(submit("filler", prompt=28, max_tokens=2, ignore_eos=True))
    world.submit(submit("next", prompt=prefix_and(2), max_tokens=2, ignore_eos=True))
    world.step()
    # Seven are in use and the line is at twelve: five for what is cached leave none for what comes after it.
    assert set(world.members()) == {"filler"}
    world.run()
    assert starts_of(world, "next") == [20]
    world.check_ended()


@step_by_step
def test_a_hit_that_is_held_takes_no_room() -> None:
    world = World(num_blocks=16, tunables={"kv_limit_ratio": 7 / 16})
    world.submit(submit("holder", prompt=prefix_and(1), max_tokens=4, ignore_eos=True))
    world.step()
    world.submit(submit("alike", prompt=prefix_and(2), max_tokens=4, ignore_eos=True))
    world.step()
    assert (set(world.members()), world.counts().kv_blocks_used) == ({"holder", "alike"}, 7)
    world.run()
    world.check_ended()


@step_by_step
def test_five_thousand_prompts_of_twenty_pools_all_run_without_waiting() -> None:
    """Case C8: what ended must not keep what comes from its memory."""
    world = World(num_blocks=500, block_size=16)
    for number in range(5000):
        world.submit(submit(f"r{number}", prompt=32, max_tokens=1))
        for owner_id, event in world.engine.step():
            world.ledger.hear(owner_id, event)
        counts = world.counts()
        assert counts.num_waiting == counts.num_running == counts.kv_blocks_used == 0
        if number % 250 == 0:
            world.engine.check_invariants()
    assert world.counts().kv_blocks_cached == 500
    assert world.counts().prompt_tokens_total == 5000 * 32
    world.check_ended()


def test_a_turn_that_is_too_long_leaves_what_is_cached_as_it_was() -> None:
    """Case C5: turn 1 fills a prefix, turn 2 is refused, turn 3 finds it."""
    world = World(num_blocks=16)
    world.submit(submit("turn1", prompt=prefix_and(1, 2), max_tokens=4))
    world.run()
    cached = world.counts().kv_blocks_cached
    world.submit(submit("turn2", prompt=prefix_and(*range(50)), max_tokens=4))
    world.run()
    assert world.reason("turn2") == "context_length_exceeded"
    assert world.counts().kv_blocks_cached == cached > 0
    world.submit(submit("turn3", prompt=prefix_and(3, 4), max_tokens=4))
    world.run()
    assert starts_of(world, "turn3") == [20]
    world.check_ended()


def test_aborting_the_preempted_gives_all_back_every_time() -> None:
    """Case C6: room for two, eight run, those that had to give way are abandoned; fifty times."""
    world = World(num_blocks=16)
    for turn in range(50):
        names = [f"t{turn}.{i}" for i in range(8)]
        world.submit(*[submit(name, prompt=12, max_tokens=18, ignore_eos=True) for name in names])
        preempted = set()
        while world.engine.has_work:
            world.step()
            for name in {key.request_id for key in world.engine._scheduler.preempted_keys}:
                preempted.add(name)
                world.abort(name)
        assert preempted
        counts = world.counts()
        assert (counts.kv_blocks_used, counts.kv_blocks_free + counts.kv_blocks_cached) == (0, 16)
    world.check_ended()


def test_every_way_to_end_gives_its_blocks_back_once(world: World) -> None:
    """Case C7: by an end-of-text token, by length, by a stop string (an abort to the engine), and by an abort."""
    world.runner.script = lambda context, chunk: 0 if chunk.key.request_id == "eos" else 9
    for name, max_tokens in (("eos", 30), ("length", 3), ("stopped", 30), ("aborted", 30)):
        world.submit(submit(name, prompt=prefix_and(1), max_tokens=max_tokens))
    world.step(3)
    world.abort("stopped")
    world.abort("aborted")
    world.abort("aborted")
    world.step(2)
    assert {name: world.reason(name) for name in ("eos", "length", "stopped", "aborted")} == {
        "eos": "stop",
        "length": "length",
        "stopped": "abort",
        "aborted": "abort",
    }
    counts = world.counts()
    assert (counts.kv_blocks_used, counts.kv_blocks_free + counts.kv_blocks_cached) == (0, 2048)
    world.engine.check_invariants()


@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
def test_a_preempted_sequence_recomputes_only_what_was_evicted_meanwhile(order: str) -> None:
    world = World(num_blocks=12, tunables={"order": order})
    world.submit(*[submit(name, prompt=14, max_tokens=24, ignore_eos=True) for name in "ab"])
    world.run()
    assert world.counts().preemptions_total > 0
    ending = next(e for e in world.ledger.endings.values() if isinstance(e, Finished) and e.timings.num_preemptions)
    assert starts_of(world, ending.key.request_id)[-1] > 0
    assert ending.timings.num_cached_tokens == 0, "what it computed itself was not cached when it came"
    assert world.counts().prompt_tokens_total == 28
    world.check_ended()


def test_turning_it_off_drops_what_is_cached_and_looks_nothing_up(world: World) -> None:
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=3))
    world.run()
    before = hits(world)
    world.retune(prefix_caching="off")
    world.submit(submit("b", prompt=prefix_and(2), max_tokens=3))
    world.step()
    assert starts_of(world, "b") == [0]
    world.run()
    assert world.counts().kv_blocks_cached == 0
    assert hits(world) == before
    world.check_ended()


@step_by_step
def test_turning_it_off_takes_nothing_from_those_that_share(world: World) -> None:
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=30, ignore_eos=True))
    world.step()
    world.submit(submit("b", prompt=prefix_and(2), max_tokens=30, ignore_eos=True))
    world.step()
    world.retune(prefix_caching="off")
    world.step()
    assert world.counts().kv_blocks_used == 7
    world.run()
    assert world.counts().kv_blocks_cached == 0
    world.check_ended()


@step_by_step
def test_turned_on_again_it_finds_what_started_since(world: World) -> None:
    world.retune(prefix_caching="off")
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=30, ignore_eos=True))
    world.step()
    world.retune(prefix_caching="on")
    for name, start in (("b", 0), ("c", 20)):
        world.submit(submit(name, prompt=prefix_and(2), max_tokens=3))
        world.step()
        assert starts_of(world, name) == [start]
    world.run()
    world.check_ended()


def test_what_a_waiting_one_was_promised_is_forgotten_with_the_rest() -> None:
    world = World(num_blocks=10)
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=1))
    world.run()
    world.submit(submit("filler", prompt=19, max_tokens=6, ignore_eos=True))
    world.submit(submit("b", prompt=prefix_and(2), max_tokens=3))
    world.step()
    assert world.counts().num_waiting == 1
    world.retune(prefix_caching="off")
    world.retune(prefix_caching="on")
    world.run()
    assert starts_of(world, "b") == [0]
    world.check_ended()


def test_who_computes_its_whole_prompt_again_is_cached_anew() -> None:
    world = World(num_blocks=12)
    asked = {"prompt": 14, "max_tokens": 24, "ignore_eos": True, "num_prompt_logprobs": 0}
    world.submit(*[submit(name, **asked) for name in "ab"])
    world.run()
    assert world.counts().preemptions_total > 0
    world.check_ended()
