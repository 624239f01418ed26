"""The choices of one request compute their prompt once, and hold its blocks together."""

from __future__ import annotations

from typing import Any

import pytest

from serving.contracts.messages import Submit
from tests.engine.core.harness import World, step_by_step, submit
from tests.engine.core.prefixes import hits

pytestmark = pytest.mark.usefixtures("either_runner")

PROMPT = list(range(200, 222))
"""Five full blocks of four tokens, and two tokens more."""
CACHING = pytest.mark.parametrize("caching", ["on", "off"])


def choices(count: int, name: str = "many", **changes: Any) -> list[Submit]:
    request = {"prompt": PROMPT, "max_tokens": 6, "ignore_eos": True, **changes}
    return [submit(name, choice=choice, seed=choice, **request) for choice in range(count)]


def prefills(world: World, name: str = "many") -> dict[int, int]:
    """Tokens that each choice computed in prefill."""
    tokens: dict[int, int] = {}
    for plan in world.runner.plans:
        for chunk in plan.chunks:
            if chunk.is_prefill and chunk.key.request_id == name:
                tokens[chunk.key.choice] = tokens.get(chunk.key.choice, 0) + len(chunk.token_ids)
    return tokens


@CACHING
@step_by_step
def test_the_prompt_is_computed_once_and_held_once(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching})
    world.submit(*choices(8))
    world.step()
    assert world.counts().num_running == 1
    world.step()
    assert prefills(world) == {0: 22} | dict.fromkeys(range(1, 8), 2)
    assert world.counts().num_running == 8
    assert world.counts().kv_blocks_used == 5 + 8
    world.run()
    assert world.counts().kv_blocks_cached == (0 if caching == "off" else 5 + 8)
    world.check_ended()


@CACHING
def test_a_prompt_in_chunks_is_waited_for_until_its_last_full_block(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching, "max_prefill_chunk": 8})
    world.submit(*choices(3))
    world.step(2)
    assert set(prefills(world)) == {0}
    world.run()
    assert prefills(world) == {0: 22, 1: 2, 2: 2}
    world.check_ended()


@CACHING
def test_others_overtake_the_choices_that_wait(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching, "max_prefill_chunk": 8})
    world.submit(*choices(3), submit("other", prompt=5, max_tokens=4))
    world.step()
    assert set(world.members()) == {"many", "other"}
    world.run()
    world.check_ended()


@CACHING
def test_a_choice_that_comes_later_shares_what_a_running_one_holds(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching})
    first, second = choices(2, max_tokens=20)
    world.submit(first)
    world.step(3)
    world.submit(second)
    world.step()
    assert prefills(world) == {0: 22, 1: 2}
    assert world.counts().kv_blocks_used == 5 + 1 + 2
    world.run()
    world.check_ended()


@CACHING
@pytest.mark.parametrize("ending", ["abort", "error", "length"])
def test_the_others_go_on_when_the_first_ends_while_they_wait_or_share(caching: str, ending: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching, "max_prefill_chunk": 8})
    requests = choices(3)
    if ending == "length":
        requests[0] = submit("many", prompt=PROMPT, max_tokens=1, choice=0, seed=0)
    world.submit(*requests)
    world.step(2)
    if ending == "abort":
        world.abort("many", 0)
    elif ending == "error":
        world.runner.failing_keys = {requests[0].key}
    world.run()
    assert world.reason("many", 0) == ending
    assert (world.reason("many", 1), world.reason("many", 2)) == ("length", "length")
    world.check_ended()


@CACHING
def test_the_others_share_on_when_the_first_has_to_give_way(caching: str) -> None:
    world = World(num_blocks=14, tunables={"prefix_caching": caching})
    world.submit(*choices(4, max_tokens=20))
    world.run()
    assert world.counts().preemptions_total > 0
    assert {world.reason("many", choice) for choice in range(4)} == {"length"}
    world.check_ended()


@CACHING
@pytest.mark.parametrize("num_blocks", [16, 17, 18, 20, 24])
def test_in_a_pool_nearly_full_a_choice_shares_all_of_the_prompt_or_nothing(caching: str, num_blocks: int) -> None:
    """Case C40."""
    world = World(num_blocks=num_blocks, tunables={"prefix_caching": caching})
    world.submit(submit("holder", prompt=24, max_tokens=30, ignore_eos=True))
    world.step()
    world.submit(*choices(8))
    starts: dict[int, int] = {}
    while world.engine.has_work:
        world.step()
        for chunk in world.plan.chunks:
            if chunk.key.request_id == "many":
                starts.setdefault(chunk.key.choice, chunk.start)
    assert set(starts.values()) == {0, 20}
    world.check_ended()


@CACHING
def test_eight_choices_take_eight_places(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching, "max_running": 5})
    world.submit(*choices(8))
    running = []
    while world.engine.has_work:
        world.step()
        running.append(world.counts().num_running)
    assert max(running) == 5
    world.check_ended()


@CACHING
def test_a_prompt_without_a_full_block_is_not_waited_for(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching})
    world.submit(*choices(4, prompt=[1, 2, 3]))
    world.step()
    assert world.counts().num_running == 4
    world.run()
    world.check_ended()


@CACHING
def test_choices_of_one_name_with_other_prompts_or_tenants_share_nothing(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching})
    world.submit(
        submit("many", choice=0, prompt=PROMPT, max_tokens=6),
        submit("many", choice=1, prompt=[*PROMPT[:-1], 7], max_tokens=6),
        submit("many", choice=2, prompt=PROMPT, max_tokens=6, tenant="another"),
    )
    world.step()
    assert world.counts().num_running == 3
    assert prefills(world) == {0: 22, 1: 22, 2: 22}
    world.run()
    world.check_ended()


@CACHING
def test_choices_that_want_their_prompts_probabilities_compute_it_each(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching})
    world.submit(*choices(3, num_prompt_logprobs=1))
    world.run()
    assert prefills(world) == {0: 22, 1: 22, 2: 22}
    world.check_ended()


@CACHING
def test_a_static_batch_takes_all_choices_at_once(caching: str) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching, "mode": "static"})
    world.submit(*choices(4))
    world.step()
    assert world.counts().num_running == 4
    world.run()
    world.check_ended()


@pytest.mark.parametrize(("caching", "asked"), [("on", 22 + 7 * 2), ("off", 0)])
def test_what_choices_share_is_counted_once_and_no_hit_of_the_cache(caching: str, asked: int) -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": caching})
    world.submit(*choices(8))
    world.run()
    assert hits(world) == (asked, 0)
    assert world.counts().prompt_tokens_total == sum(prefills(world).values()) == 22 + 7 * 2
    world.check_ended()


def test_what_the_first_choice_finds_cached_is_a_hit_and_what_the_others_share_with_it_none() -> None:
    world = World(num_blocks=64)
    world.submit(submit("before", prompt=PROMPT, max_tokens=1))
    world.run()
    world.submit(*choices(8))
    world.run()
    query, hit = hits(world)
    assert (query, hit) == (22 + 22 + 7 * 2, 20)
    assert prefills(world) == dict.fromkeys(range(8), 2)
    assert world.counts().prompt_tokens_total == 22 + 22 + 7 * 2
    world.check_ended()


@pytest.mark.parametrize("first", ["on", "off"])
def test_the_tunable_may_change_while_choices_wait_and_share(first: str) -> None:
    other = "off" if first == "on" else "on"
    for switch_after in range(6):
        world = World(num_blocks=64, tunables={"prefix_caching": first, "max_prefill_chunk": 8})
        world.submit(*choices(2), submit("alike", prompt=PROMPT, max_tokens=12, ignore_eos=True))
        world.step(switch_after)
        world.retune(prefix_caching=other)
        world.submit(*choices(3, name="more"), submit("alike too", prompt=PROMPT, max_tokens=12, ignore_eos=True))
        world.step(2)
        world.retune(prefix_caching=first)
        world.submit(*choices(4)[2:])
        world.run()
        world.check_ended()


def test_a_sibling_that_is_not_cached_is_shared_beside_one_alike_that_is_being_cached() -> None:
    world = World(num_blocks=64, tunables={"prefix_caching": "off", "max_prefill_chunk": 8})
    first, second = choices(2, max_tokens=20)
    world.submit(first)
    world.step(4)
    world.retune(prefix_caching="on")
    world.submit(submit("alike", prompt=PROMPT, max_tokens=30, ignore_eos=True))
    world.step()
    world.submit(second)
    world.step()
    # The other request has two blocks of the five in the cache; the sibling has them all.
    assert prefills(world) == {0: 22, 1: 2}
    world.run()
    world.check_ended()
