"""A context that begins like an earlier one is computed from where they part, and its text is the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from serving.engine import prefix_cache
from tests.engine.core.harness import World, submit
from tests.engine.core.prefixes import PREFIX, first_timings, hits, prefix_and, starts_of


def test_computes_only_what_comes_after_the_beginning_that_is_cached(world: World) -> None:
    world.submit(submit("a", prompt=prefix_and(1, 2, 3), max_tokens=3))
    world.run()
    world.submit(submit("b", prompt=prefix_and(7, 8), max_tokens=3))
    events = world.step()
    assert starts_of(world, "b") == [20]
    assert world.members() == {"b": 2}
    assert first_timings(events, "b").num_cached_tokens == 20
    world.run()
    assert hits(world) == (45, 20)
    world.check_ended()


def test_a_request_that_still_runs_is_found_at_once(world: World) -> None:
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=30, ignore_eos=True))
    world.step()
    world.submit(submit("b", prompt=prefix_and(2), max_tokens=30, ignore_eos=True))
    world.step()
    assert starts_of(world, "b") == [20]
    # Five blocks in common, and one that each has for itself.
    assert world.counts().kv_blocks_used == 7
    world.run()
    world.check_ended()


def test_a_prompt_is_found_while_its_later_part_is_still_computed() -> None:
    world = World(num_blocks=64, tunables={"max_prefill_chunk": 8})
    world.submit(submit("a", prompt=PREFIX, max_tokens=3))
    world.step()
    world.submit(submit("b", prompt=PREFIX, max_tokens=3))
    world.run()
    assert starts_of(world, "b") == [8]
    world.check_ended()


def test_the_last_token_is_computed_even_where_all_is_cached(world: World) -> None:
    world.submit(submit("a", prompt=PREFIX, max_tokens=3))
    world.run()
    world.submit(submit("b", prompt=PREFIX, max_tokens=3))
    world.run()
    assert starts_of(world, "b") == [16]
    world.check_ended()


def test_two_that_compute_the_same_at_once_hold_it_once_from_then_on(world: World) -> None:
    world.submit(*[submit(name, prompt=prefix_and(1), max_tokens=30, ignore_eos=True, seed=7) for name in "ab"])
    world.step()
    assert world.counts().kv_blocks_used == 7
    world.step(8)
    assert world.tokens("a") == world.tokens("b")
    world.run()
    world.check_ended()


def test_generated_tokens_are_found_by_the_next_turn(world: World) -> None:
    first = submit("turn1", prompt=prefix_and(1, 2), max_tokens=14, ignore_eos=True)
    world.submit(first)
    world.run()
    # The last token was never given to the model: 22 + 13 positions are computed, eight full blocks.
    second = [*first.prompt_ids, *world.tokens("turn1"), 5, 6, 7]
    world.submit(submit("turn2", prompt=second, max_tokens=4))
    world.run()
    assert starts_of(world, "turn2") == [32]
    world.check_ended()


@pytest.mark.parametrize("other", [{"tenant": "another"}, {"cache_salt": "pepper"}])
def test_nothing_is_shared_between_tenants_or_salts(world: World, other: dict[str, str]) -> None:
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=3))
    world.run()
    world.submit(submit("b", prompt=prefix_and(1), max_tokens=3, **other))
    world.submit(submit("c", prompt=prefix_and(1), max_tokens=3))
    world.run()
    assert (starts_of(world, "b"), starts_of(world, "c")) == ([0], [20])
    world.check_ended()


def test_a_request_for_its_prompts_probabilities_computes_all_of_it_and_is_found_by_others(world: World) -> None:
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=3))
    world.run()
    before = hits(world)
    world.submit(submit("b", prompt=prefix_and(1, 2, 3, 4, 5), max_tokens=3, num_prompt_logprobs=0))
    world.run()
    assert starts_of(world, "b") == [0]
    assert hits(world) == before
    world.submit(submit("c", prompt=prefix_and(1, 2, 3, 4, 9), max_tokens=3))
    world.run()
    assert starts_of(world, "c") == [24]
    world.check_ended()


def test_what_a_chunk_failed_to_compute_is_not_found(world: World) -> None:
    bad = submit("bad", prompt=prefix_and(1), max_tokens=3)
    world.runner.failing_keys = {bad.key}
    world.submit(bad)
    world.run()
    assert world.reason("bad") == "error"
    world.submit(submit("good", prompt=prefix_and(1), max_tokens=3))
    world.run()
    assert starts_of(world, "good") == [0]
    world.check_ended()


def test_what_a_failed_step_was_to_compute_is_not_found(world: World) -> None:
    def fail(plan: object) -> None:
        raise RuntimeError("scripted failure")

    world.runner.before_run = fail
    world.submit(submit("bad", prompt=prefix_and(1), max_tokens=3))
    world.run()
    world.runner.before_run = None
    world.submit(submit("good", prompt=prefix_and(1), max_tokens=3))
    world.run()
    assert starts_of(world, "good") == [0]
    world.check_ended()


def test_what_was_aborted_in_flight_is_not_found(world: World) -> None:
    world.runner.before_run = lambda plan: world.abort("gone")
    world.submit(submit("gone", prompt=prefix_and(1), max_tokens=3))
    world.step()
    world.runner.before_run = None
    world.submit(submit("next", prompt=prefix_and(1), max_tokens=3))
    world.run()
    assert starts_of(world, "next") == [0]
    world.check_ended()


def test_a_resubmitted_attempt_finds_what_the_one_before_computed(world: World) -> None:
    first = submit("a", prompt=prefix_and(1), max_tokens=30, ignore_eos=True)
    world.submit(first)
    world.step(10)
    delivered = world.tokens("a")
    world.submit(submit("a", prompt=prefix_and(1), max_tokens=30, ignore_eos=True, attempt=2, generated=delivered))
    events = world.step()
    # 21 + 9 positions were computed; of the 21 that are prompt, all were found.
    assert starts_of(world, "a")[-1] == 28
    assert first_timings(events, "a").num_cached_tokens == 21
    world.run()
    world.check_ended()


def test_five_hundred_prompts_whose_hashes_collide_get_the_text_that_they_get_without_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case C78: with a hash of eight bits, about every block meets another of the same hash."""

    class ShortHash(tuple[Any, ...]):
        def __hash__(self) -> int:
            return super().__hash__() & 0xFF

    monkeypatch.setattr(prefix_cache, "block_key", lambda before, tokens: ShortHash((before, tokens)))
    chance = random.Random(78)
    world = World(num_blocks=300, tunables={"max_running": 24})
    for number in range(500):
        stem = PREFIX[: chance.randrange(0, 20)] if number % 3 else []
        prompt = [*stem, *chance.choices(range(1, 4), k=chance.randrange(1, 30))]
        tenant = chance.choice(["one", "two"])
        world.submit(submit(f"r{number}", prompt=prompt, max_tokens=6, tenant=tenant, seed=number))
        if number % 4 == 0:
            world.step()
    world.run()
    assert hits(world)[1] > 0
    world.check_ended()
