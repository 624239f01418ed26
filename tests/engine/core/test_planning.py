"""Who is in a step, and how its token budget is spent."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.core.harness import World, submit


def test_sequences_join_and_leave_between_steps() -> None:
    world = World(tunables={"max_running": 3})
    world.submit(*[submit(name, max_tokens=n, ignore_eos=True) for name, n in zip("abcd", (5, 4, 2, 3), strict=True)])
    seen = []
    while world.engine.has_work:
        world.step()
        seen.append("".join(sorted(world.members())))
    assert seen == ["abc", "abc", "abd", "abd", "ad"]
    world.check_ended()


def test_a_stream_is_what_it_is_alone_when_another_joins(world: World) -> None:
    world.submit(submit("a", max_tokens=200, ignore_eos=True))
    world.step(20)
    world.submit(submit("b", prompt=33, max_tokens=50))
    world.run()
    assert world.reason("a") == "length"
    assert len(world.tokens("a")) == 200
    world.check_ended()


def test_prompts_are_computed_in_chunks() -> None:
    world = World(tunables={"max_prefill_chunk": 10, "max_batch_tokens": 64})
    world.submit(submit("a", prompt=25, max_tokens=2, ignore_eos=True))
    lengths = []
    while world.engine.has_work:
        world.step()
        lengths.append((world.members()["a"], world.plan.chunks[0].is_prefill, world.plan.chunks[0].samples))
    assert lengths == [(10, True, False), (10, True, False), (5, True, True), (1, False, True)]
    world.check_ended()


def test_decodes_and_prefill_share_a_step() -> None:
    world = World(tunables={"max_batch_tokens": 32, "max_prefill_chunk": 32})
    world.submit(submit("a", max_tokens=20, ignore_eos=True))
    world.step()
    world.submit(submit("b", prompt=50))
    world.step()
    assert world.members() == {"a": 1, "b": 31}
    assert (world.plan.num_decode_tokens, world.plan.num_prefill_tokens) == (1, 31)


def _crowd(share: float, *, num_decoding: int = 40) -> World:
    """Many decodes and a long prompt that want 32 tokens a step."""
    world = World(num_blocks=4096, tunables={"max_running": 100, "max_batch_tokens": 1024, "prefill_share": share})
    world.submit(*[submit(f"d{i}", max_tokens=500, ignore_eos=True) for i in range(num_decoding)])
    world.step()
    world.retune(max_batch_tokens=32, max_prefill_chunk=256)
    world.submit(submit("long", prompt=300, max_tokens=2))
    return world


@pytest.mark.parametrize(("share", "num_prefill"), [(0.0, 2), (0.25, 8), (0.5, 16), (1.0, 30)])
def test_prefill_share_divides_a_contended_budget(share: float, num_prefill: int) -> None:
    world = _crowd(share)
    world.step()
    assert (world.plan.num_prefill_tokens, world.plan.num_decode_tokens) == (num_prefill, 32 - num_prefill)


def test_prefill_takes_what_decodes_leave_over_whatever_its_share() -> None:
    world = _crowd(0.0, num_decoding=5)
    world.step()
    assert (world.plan.num_prefill_tokens, world.plan.num_decode_tokens) == (27, 5)


def test_decodes_take_what_prefill_leaves_over_whatever_its_share() -> None:
    world = _crowd(1.0, num_decoding=20)
    world.abort("long")
    world.submit(submit("short", prompt=3))
    world.step()
    assert (world.plan.num_prefill_tokens, world.plan.num_decode_tokens) == (3, 20)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_neither_prefill_nor_decode_starves(share: float) -> None:
    world = _crowd(share)
    while not world.tokens("long"):
        world.step()
        assert world.plan.num_decode_tokens > 0
        assert world.plan.num_prefill_tokens > 0


def test_decodes_beyond_the_budget_take_turns() -> None:
    world = World(num_blocks=1024, tunables={"max_running": 100, "max_batch_tokens": 1024})
    world.submit(*[submit(f"d{i}", max_tokens=100, ignore_eos=True) for i in range(40)])
    world.step()
    world.retune(max_batch_tokens=16)
    turns: Counter[str] = Counter()
    for _ in range(50):
        world.step()
        turns.update(world.members())
    assert sum(turns.values()) == 800
    assert max(turns.values()) - min(turns.values()) <= 1
    assert len(turns) == 40


def test_lowering_max_running_drains_and_kills_nobody(world: World) -> None:
    world.submit(*[submit(f"r{i}", max_tokens=4 + i, ignore_eos=True) for i in range(8)])
    world.step()
    world.retune(max_running=2)
    world.submit(submit("late"))
    for _ in range(3):
        world.step()
        assert "late" not in world.members()
    assert world.counts().num_running == 7
    while "late" not in world.members():
        before = world.counts().num_running
        world.step()
    assert before < 2
    world.run()
    world.check_ended()
    assert world.counts().preemptions_total == 0


def test_short_prompts_run_beside_a_long_prefill() -> None:
    world = World(num_blocks=4096, max_model_len=9000, tunables={"max_batch_tokens": 512, "max_prefill_chunk": 128})
    world.submit(submit("long", prompt=8000, max_tokens=4))
    world.submit(*[submit(f"s{i}", prompt=20, max_tokens=4) for i in range(20)])
    world.step(2)
    assert all(world.tokens(f"s{i}") for i in range(20))
    world.step(62)
    assert world.tokens("long")


def test_a_long_prefill_ends_under_a_steady_load_of_decodes() -> None:
    world = World(num_blocks=8192, max_model_len=9000, tunables={"max_batch_tokens": 4096, "max_running": 64})
    world.submit(*[submit(f"d{i}", max_tokens=1000, ignore_eos=True) for i in range(60)])
    world.step()
    world.retune(max_batch_tokens=48, prefill_share=0.0)
    world.submit(submit("long", prompt=600, max_tokens=4))
    world.step(600 // 3)
    assert world.tokens("long")


def test_prompt_tokens_are_counted_once_and_generated_ones_all(world: World) -> None:
    world.submit(submit("a", prompt=10, max_tokens=5, ignore_eos=True), submit("b", prompt=7, max_tokens=3))
    world.run()
    counts = world.counts()
    assert counts.prompt_tokens_total == 17
    assert counts.generated_tokens_total == len(world.tokens("a")) + len(world.tokens("b"))


def test_each_choice_takes_a_place_of_its_own() -> None:
    world = World(tunables={"max_running": 4})
    world.submit(*[submit("n", choice=i, seed=i, max_tokens=6, ignore_eos=True) for i in range(16)])
    assert world.counts().num_waiting == 16
    world.step()
    assert (world.counts().num_running, world.counts().num_waiting) == (4, 12)
    world.run()
    world.check_ended()
    assert len({tuple(world.tokens("n", i)) for i in range(16)}) == 16


def test_distinct_prompts_of_many_times_the_pool_all_finish() -> None:
    world = World(num_blocks=64, block_size=16, tunables={"max_running": 8})
    for i in range(5000):
        world.submit(submit(f"p{i}", prompt=4, max_tokens=2))
        if i % 8 == 7:
            assert world.run() <= 10
            world.runner.plans.clear()
    world.run()
    assert {world.reason(f"p{i}") for i in range(5000)} <= {"stop", "length"}
    world.check_ended()
