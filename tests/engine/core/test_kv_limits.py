"""Steering the use of KV memory while sequences run."""

from __future__ import annotations

import pytest

from tests.engine.core.harness import World, step_by_step, submit

pytestmark = pytest.mark.usefixtures("either_runner")


def test_joins_stop_at_the_limit() -> None:
    world = World(num_blocks=20, tunables={"kv_limit_ratio": 0.5})
    world.submit(*[submit(name, prompt=15, max_tokens=2) for name in "abc"])
    world.step()
    assert (world.counts().num_running, world.counts().kv_blocks_used) == (2, 8)
    world.run()
    world.check_ended()


def test_the_watermark_stays_free_when_a_sequence_joins_others() -> None:
    world = World(num_blocks=20, tunables={"kv_watermark_ratio": 0.25})
    world.submit(*[submit(name, prompt=16, max_tokens=2) for name in "abcde"])
    world.step()
    assert world.counts().kv_blocks_used == 12
    world.run()
    world.check_ended()


def test_lowering_the_limit_drains_and_throws_nobody_out() -> None:
    world = World(num_blocks=40)
    world.submit(*[submit(f"r{i}", prompt=13, max_tokens=2 + i, ignore_eos=True) for i in range(8)])
    world.step()
    world.retune(kv_limit_ratio=0.25)
    world.submit(submit("late", prompt=13, max_tokens=2))
    used = world.counts().kv_blocks_used
    while world.engine.has_work:
        world.step()
        counts = world.counts()
        if counts.num_running > 1:
            assert counts.kv_blocks_used <= max(10, used)
        if used > 10:
            assert "late" not in world.members()
        used = counts.kv_blocks_used
    world.check_ended()


def test_lowering_the_limit_alone_preempts_nobody() -> None:
    world = World(num_blocks=40)
    # Every sequence ends within the blocks that its prompt's last block leaves open.
    world.submit(*[submit(f"r{i}", prompt=13, max_tokens=3, ignore_eos=True) for i in range(8)])
    world.step()
    world.retune(kv_limit_ratio=0.01)
    world.run()
    assert world.counts().preemptions_total == 0
    world.check_ended()


@pytest.mark.parametrize("ratio", [0.01, 0.3])
def test_a_sequence_alone_may_use_the_whole_pool(ratio: float) -> None:
    world = World(num_blocks=10, tunables={"kv_limit_ratio": ratio})
    world.submit(submit("big", prompt=30, max_tokens=10, ignore_eos=True), submit("next", prompt=20, max_tokens=20))
    world.run()
    assert world.reason("big") == "length"
    assert world.counts().preemptions_total == 0
    world.check_ended()


@step_by_step
def test_growth_does_not_pass_the_limit_while_others_run() -> None:
    world = World(num_blocks=20, tunables={"kv_limit_ratio": 0.5})
    world.submit(*[submit(name, prompt=15, max_tokens=9, ignore_eos=True) for name in "ab"])
    world.step(3)
    assert (world.counts().num_running, world.counts().kv_blocks_used) == (2, 10)
    world.step(4)
    assert (world.counts().num_running, world.counts().kv_blocks_used) == (1, 6)
    world.run()
    world.check_ended()


@step_by_step
def test_growth_above_a_lowered_limit_preempts_no_more_than_it_takes() -> None:
    world = World(num_blocks=40)
    world.submit(*[submit(name, prompt=15, max_tokens=9, ignore_eos=True) for name in "abcd"])
    world.step(2)
    assert world.counts().kv_blocks_used == 16
    world.retune(kv_limit_ratio=0.1)
    world.step()
    # Three grow by a block each, which the four of the last one pay for.
    assert (world.counts().num_running, world.counts().kv_blocks_used) == (3, 15)
    world.run()
    world.check_ended()


def test_raising_the_limit_lets_the_waiting_join_at_once() -> None:
    world = World(num_blocks=20, tunables={"kv_limit_ratio": 0.25})
    world.submit(*[submit(name, prompt=15, max_tokens=9, ignore_eos=True) for name in "abc"])
    world.step()
    assert world.counts().num_running == 1
    world.retune(kv_limit_ratio=1.0)
    world.step()
    assert world.counts().num_running == 3
