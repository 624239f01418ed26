"""When the pool is empty: who gives way, what it keeps, and that everything ends in bounded time."""

from __future__ import annotations

from collections import Counter

import pytest

from serving.contracts.messages import Finished, Tokens
from tests.engine.core.harness import World, step_by_step, submit

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("either_runner")]

ORDERS = ["fcfs", "priority", "fair"]


@step_by_step
def test_preempts_newest_when_pool_is_empty() -> None:
    world = World(num_blocks=9)
    for name in "abc":
        world.submit(submit(name, prompt=11, max_tokens=12, ignore_eos=True))
        world.now += 1
    world.step(2)
    assert world.counts().num_running == 3
    world.step()
    assert world.counts().preemptions_total == 1
    assert set(world.members()) == {"a", "b"}
    world.run()
    assert list(world.ledger.endings) == sorted(world.ledger.endings, key=lambda key: key.request_id)
    world.check_ended()


def test_a_preempted_sequence_goes_before_those_never_started() -> None:
    world = World(num_blocks=8)
    world.submit(*[submit(name, prompt=14, max_tokens=8, ignore_eos=True) for name in "ab"])
    world.step()
    world.submit(submit("late", prompt=2, max_tokens=1, waited=30.0))
    world.run()
    prefills = [chunk.key.request_id for plan in world.runner.plans for chunk in plan.chunks if chunk.is_prefill]
    assert prefills == ["a", "b", "b", "late"]
    world.check_ended()


@pytest.mark.parametrize("order", ORDERS)
def test_two_holders_of_half_the_pool_do_not_deadlock(order: str) -> None:
    world = World(num_blocks=8, tunables={"order": order})
    world.submit(*[submit(name, prompt=16, max_tokens=16, ignore_eos=True, tenant=name) for name in "ab"])
    steps = world.run(max_steps=60)
    assert steps <= 34
    assert world.counts().preemptions_total == 1
    world.check_ended()


def test_a_preempted_sequence_does_not_come_back_before_another_ends() -> None:
    world = World(num_blocks=12)
    world.submit(*[submit(name, prompt=14, max_tokens=20, ignore_eos=True) for name in "abc"])
    while world.counts().preemptions_total == 0:
        world.step()
    num_ended = len(world.ledger.endings)
    before = world.counts().preemptions_total
    while len(world.ledger.endings) == num_ended:
        world.step()
        assert "c" not in world.members() or len(world.ledger.endings) > num_ended
    assert world.counts().preemptions_total - before <= 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("caching", ["on", "off"])
@pytest.mark.parametrize("chunk", [16, 256])
def test_preemption_changes_no_text_and_repeats_no_token(chunk: int, caching: str, order: str) -> None:
    requests = [
        submit(f"r{i}", prompt=20 + i, max_tokens=256, ignore_eos=True, tenant=f"t{i % 5}", priority=i % 3)
        for i in range(16)
    ]
    # Room for three whole ones.
    tunables = {"max_prefill_chunk": chunk, "prefix_caching": caching, "order": order}
    world = World(num_blocks=3 * 18, block_size=16, tunables=tunables)
    world.submit(*requests)
    heard: Counter[str] = Counter()
    while world.engine.has_work:
        for event in world.step():
            if isinstance(event, Tokens):
                heard[event.key.request_id] += len(event.token_ids)
    assert world.counts().preemptions_total > 0
    assert set(heard.values()) == {256}
    assert world.counts().generated_tokens_total == 16 * 256
    assert world.counts().prompt_tokens_total == sum(len(request.prompt_ids) for request in requests)
    world.check_ended()


def _mixed_lengths(num_blocks: int, *, order: str, caching: str) -> World:
    tunables = {"kv_watermark_ratio": 0.02, "order": order, "prefix_caching": caching}
    world = World(num_blocks=num_blocks, block_size=16, tunables=tunables)
    for i, (prompt, output) in enumerate(zip((200, 30, 120, 60, 10, 90, 150, 40), range(60, 220, 20), strict=True)):
        tenant, priority = "abc"[i % 3], (0, 1, 0, -1)[i % 4]
        world.submit(
            submit(f"r{i}", prompt=prompt, max_tokens=output, ignore_eos=True, tenant=tenant, priority=priority)
        )
        world.now += 0.001
    return world


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("caching", ["on", "off"])
@pytest.mark.parametrize("share_of_demand", [0.95, 0.7, 0.5])
def test_mixed_lengths_under_pressure_take_at_most_twice_the_steps(
    share_of_demand: float, caching: str, order: str
) -> None:
    ample = _mixed_lengths(1000, order=order, caching=caching)
    peak, ideal = 0, 0
    while ample.engine.has_work:
        ample.step()
        ideal += 1
        peak = max(peak, ample.counts().kv_blocks_used)
    world = _mixed_lengths(int(peak * share_of_demand), order=order, caching=caching)
    steps = world.run()
    assert steps <= 2 * ideal
    endings = [ending for ending in world.ledger.endings.values() if isinstance(ending, Finished)]
    assert 0 < sum(ending.timings.num_preemptions for ending in endings) == world.counts().preemptions_total
    assert max(ending.timings.num_preemptions for ending in endings) <= 4
    world.check_ended()


def test_a_sequence_in_the_middle_of_its_prefill_can_give_way() -> None:
    world = World(num_blocks=12, tunables={"max_prefill_chunk": 4, "max_batch_tokens": 16})
    world.submit(submit("a", prompt=4, max_tokens=40, ignore_eos=True))
    world.step(2)
    world.submit(submit("b", prompt=36, max_tokens=2, ignore_eos=True))
    while world.counts().preemptions_total == 0:
        assert world.tokens("b") == []
        world.step()
    assert world.counts().num_waiting_tokens == 36
    world.run()
    world.check_ended()
    assert world.counts().prompt_tokens_total == 40


def test_recomputed_tokens_are_prefill() -> None:
    world = World(num_blocks=8, tunables={"prefix_caching": "off"})
    world.submit(*[submit(name, prompt=14, max_tokens=8, ignore_eos=True) for name in "ab"])
    world.run()
    chunks = [chunk for plan in world.runner.plans for chunk in plan.chunks if chunk.key.request_id == "b"]
    restarts = [chunk for chunk in chunks if chunk.start == 0]
    assert len(restarts) == 2
    assert restarts[1].is_prefill
    assert restarts[1].sample_index > 0
    assert restarts[1].end == 14 + restarts[1].sample_index


@pytest.mark.parametrize("order", ORDERS)
def test_nobody_gives_way_without_end_however_ranks_move(order: str) -> None:
    """Many small tenants in a pool that holds two and a half of them: `fair` would take from each in turn."""
    world = World(num_blocks=20, tunables={"order": order, "prefix_caching": "off"})
    for i in range(24):
        world.submit(submit(f"r{i}", prompt=8, max_tokens=24, ignore_eos=True, tenant=f"t{i}"))
    world.run(max_steps=24 * 24)
    endings = [ending for ending in world.ledger.endings.values() if isinstance(ending, Finished)]
    assert max(ending.timings.num_preemptions for ending in endings) <= 4
    world.check_ended()


def test_who_gave_way_twice_goes_before_all_others() -> None:
    world = World(num_blocks=16, tunables={"order": "priority", "prefix_caching": "off"})
    world.submit(submit("humble", prompt=20, max_tokens=30, ignore_eos=True, priority=50))
    num_urgent = 0
    humble = submit("humble").key
    while humble in world.ledger.open_keys:
        if len(world.ledger.open_keys) < 3:
            num_urgent += 1
            world.submit(submit(f"u{num_urgent}", prompt=10, max_tokens=14, ignore_eos=True, priority=-50))
        world.step()
        assert num_urgent < 40
    ending = world.ending("humble")
    assert isinstance(ending, Finished)
    assert ending.timings.num_preemptions == 2
    world.run()
    world.check_ended()
