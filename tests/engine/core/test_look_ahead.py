"""A plan in flight while the next is made: what that changes, and what it must not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from serving.contracts.messages import Finished, Tokens
from serving.contracts.sampling import Grammar
from serving.engine.plan import PlannedChunk, StepPlan
from tests.engine.core.harness import World, submit
from tests.engine.core.runners import EOS, AheadCacheRunner, next_token


def _world(**changes: Any) -> World:
    return World(**{"num_blocks": 64, "looks_ahead": True, **changes})


def _runner(world: World) -> AheadCacheRunner:
    assert isinstance(world.runner, AheadCacheRunner)
    return world.runner


def _hear_at_once(world: World) -> None:
    """Take what commands have to tell, before the next step."""
    for owner_id, event in world.engine.take_events():
        world.ledger.hear(owner_id, event)


def _ends_at(name: str, index: int) -> Callable[[list[int], PlannedChunk], int]:
    """A script by which the request of this name ends by EOS as its token number `index`, and no other does."""

    def script(context: list[int], chunk: PlannedChunk) -> int:
        if chunk.key.request_id == name and chunk.sample_index == index:
            return EOS
        return 1 + next_token(context, seed=chunk.params.seed, sample_index=chunk.sample_index, vocab_size=30)

    return script


def test_every_step_but_the_first_is_launched_before_the_one_before_is_taken_in() -> None:
    world = _world()
    world.submit(submit("a", max_tokens=20, ignore_eos=True), submit("b", max_tokens=20, ignore_eos=True))
    world.run()
    assert len(world.runner.plans) == 20
    assert _runner(world).num_launched_behind == 19
    assert world.counts().discarded_tokens_total == 0
    world.check_ended()


def test_a_decode_is_planned_before_its_token_is_known() -> None:
    world = _world()
    world.submit(submit("a", prompt=4, max_tokens=8), submit("b", prompt=3, max_tokens=8))
    world.step(2)
    assert [(chunk.awaits, chunk.start, chunk.sample_index, chunk.is_prefill) for chunk in world.plan.chunks] == [
        (0, 4, 1, False),
        (1, 3, 1, False),
    ]
    assert [len(world.tokens(name)) for name in "ab"] == [1, 1]


def test_a_prompt_goes_on_while_its_part_before_is_in_flight_and_then_decodes() -> None:
    world = _world(tunables={"max_prefill_chunk": 4})
    world.submit(submit("a", prompt=10, max_tokens=3, ignore_eos=True))
    world.run()
    seen = [(chunk.start, len(chunk.token_ids), chunk.awaits) for plan in world.runner.plans for chunk in plan.chunks]
    assert seen == [(0, 4, None), (4, 4, None), (8, 2, None), (10, 1, 0), (11, 1, 0)]
    world.check_ended()


def test_nothing_is_computed_behind_a_token_that_is_known_to_be_the_last() -> None:
    world = _world()
    world.submit(submit("short", max_tokens=2, ignore_eos=True), submit("long", max_tokens=6, ignore_eos=True))
    world.run()
    assert [len(plan.chunks) for plan in world.runner.plans] == [2, 2, 1, 1, 1, 1]
    assert world.counts().discarded_tokens_total == 0
    world.check_ended()


def test_what_was_computed_behind_an_unforeseen_end_is_thrown_away_and_counted() -> None:
    world = _world()
    world.runner.script = _ends_at("a", 2)
    world.submit(submit("a", max_tokens=9), submit("b", max_tokens=9))
    world.run()
    assert (world.reason("a"), len(world.tokens("a"))) == ("stop", 3)
    assert (world.reason("b"), len(world.tokens("b"))) == ("length", 9)
    assert world.counts().discarded_tokens_total == 1
    assert world.counts().generated_tokens_total == 12
    assert world.counts().decode_tokens_total == 2 + 1 + 8


def test_a_stop_token_in_flight_ends_it_as_without_look_ahead() -> None:
    world = _world()
    world.submit(submit("a", max_tokens=30, stop_token_ids=(3, 9, 24), min_tokens=2))
    world.run()
    world.check_ended()


@pytest.mark.parametrize("prompt", range(3, 9))
def test_the_block_of_one_that_ended_is_given_out_while_its_last_row_is_still_to_be_computed(prompt: int) -> None:
    """In a pool that is full, the next prompt lies where the late row writes."""
    world = _world(num_blocks=3)
    world.runner.script = _ends_at("a", 1)
    world.submit(submit("a", prompt=prompt, max_tokens=4), submit("b", prompt=9, max_tokens=3, ignore_eos=True))
    world.run()
    assert (world.reason("a"), world.reason("b")) == ("stop", "length")
    assert world.counts().discarded_tokens_total == 1
    alone = _world()
    alone.runner.script = _ends_at("a", 1)
    alone.submit(submit("b", prompt=9, max_tokens=3, ignore_eos=True))
    alone.run()
    assert world.tokens("b") == alone.tokens("b")


def test_a_full_block_is_found_once_its_step_was_taken_in() -> None:
    world = _world()
    world.submit(submit("a", prompt=[1, 2, 3], max_tokens=9, ignore_eos=True))
    world.step(7)
    begin = [1, 2, 3, *world.tokens("a")]
    world.submit(submit("b", prompt=[*begin, 5], max_tokens=3, ignore_eos=True))
    world.run()
    finished = world.ending("b")
    assert isinstance(finished, Finished)
    assert finished.timings.num_cached_tokens == 8
    world.check_ended()


@pytest.mark.parametrize(
    "bound",
    [
        {"grammar": Grammar("regex", "a+")},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -0.5},
    ],
    ids=str,
)
def test_a_step_waits_for_the_text_of_those_whose_next_token_depends_on_it(bound: dict[str, Any]) -> None:
    world = _world()
    world.submit(submit("free", max_tokens=12, ignore_eos=True))
    world.run()
    num_behind = _runner(world).num_launched_behind
    assert num_behind == 11
    world.submit(submit("free2", prompt=5, max_tokens=12, ignore_eos=True), submit("bound", max_tokens=6, **bound))
    world.run()
    plans = [plan for plan in world.runner.plans if any(chunk.key.request_id == "bound" for chunk in plan.chunks)]
    assert all(chunk.awaits is None for plan in plans[1:] for chunk in plan.chunks)
    # It is in every step until it ends, as it would be without look-ahead.
    assert [len(plan.chunks) for plan in plans] == [2] * len(world.tokens("bound"))
    # Behind its last token, if that was foreseen, and behind all that come after it.
    assert _runner(world).num_launched_behind >= num_behind + 12 - len(plans) - 1
    world.check_ended()


def test_an_embedding_that_goes_on_waits_for_the_sum_so_far() -> None:
    world = _world(tunables={"max_prefill_chunk": 4})
    world.submit(submit("a", prompt=10, max_tokens=0, embeds=True), submit("b", max_tokens=9, ignore_eos=True))
    world.run()
    world.check_ended()
    assert [len(plan.chunks) for plan in world.runner.plans][:4] == [2, 2, 2, 1]
    assert _runner(world).num_launched_behind == len(world.runner.plans) - 3


def test_who_ends_with_the_step_in_flight_may_pay_for_another_that_grows() -> None:
    """Both are full; one ends, unforeseen, as the other needs its next block: nobody has to give way for it."""
    world = _world(num_blocks=4)
    world.runner.script = _ends_at("a", 1)
    world.submit(submit("a", prompt=7, max_tokens=9), submit("b", prompt=7, max_tokens=9, ignore_eos=True))
    world.run()
    assert world.counts().preemptions_total == 0
    assert (world.reason("a"), world.reason("b")) == ("stop", "length")


def test_who_gives_way_has_nothing_in_flight() -> None:
    world = _world(num_blocks=8)
    world.submit(*[submit(name, prompt=14, max_tokens=12, ignore_eos=True) for name in "ab"])
    world.run()
    assert world.counts().preemptions_total == 1
    assert world.counts().discarded_tokens_total == 0
    world.check_ended()


def test_an_abort_in_flight_ends_it_at_once_and_its_rows_are_thrown_away() -> None:
    world = _world()
    world.submit(submit("a", max_tokens=50, ignore_eos=True), submit("b", max_tokens=6, ignore_eos=True))
    world.step(4)
    world.abort("a")
    heard = world.step()
    assert world.reason("a") == "abort"
    assert [event.key.request_id for event in heard if isinstance(event, Tokens)] == ["b"]
    world.run()
    # One row was in flight, and no other was planned.
    assert world.counts().discarded_tokens_total == 1
    world.check_ended()


def test_an_engine_that_is_idle_has_nothing_in_flight() -> None:
    world = _world()
    assert not world.engine.has_work
    world.submit(submit("a", max_tokens=5, ignore_eos=True))
    world.step(3)
    world.abort("a")
    _hear_at_once(world)
    assert world.engine.num_unfinished == 0
    assert world.engine.has_work
    assert world.engine.next_wakeup() == world.now
    world.run()
    assert world.engine.next_wakeup() is None
    assert world.engine.step() == []


def test_a_drained_engine_is_drained_when_nothing_is_in_flight() -> None:
    world = _world()
    world.submit(submit("a", max_tokens=5, ignore_eos=True))
    world.step(2)
    world.abort("a")
    world.engine.drain()
    _hear_at_once(world)
    assert world.counts().state == "draining"
    world.run()
    assert world.counts().state == "drained"


def test_what_is_handed_back_with_a_plan_in_flight_is_told_once() -> None:
    world = _world()
    world.submit(submit("a", max_tokens=5, ignore_eos=True), submit("b", max_tokens=5, ignore_eos=True))
    world.step(3)
    for owner_id, event in world.engine.hand_back():
        world.ledger.hear(owner_id, event)
    assert [world.reason(name) for name in "ab"] == ["returned", "returned"]
    assert world.step() == []
    assert not world.engine.has_work
    world.check_ended()


def test_a_failed_step_ends_its_sequences_once_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    world = _world(tunables={"max_running": 2})
    world.submit(*[submit(name, max_tokens=5, ignore_eos=True) for name in "abc"])
    world.step(2)
    heard = [len(world.tokens(name)) for name in "ab"]

    def explode(plan: StepPlan) -> None:
        raise RuntimeError("device is on fire")

    world.runner.before_run = explode
    with caplog.at_level(logging.ERROR):
        world.step()
    world.runner.before_run = None
    assert [world.reason(name) for name in "ab"] == ["error", "error"]
    assert [len(world.tokens(name)) for name in "ab"] == heard
    world.run()
    assert world.reason("c") == "length"
    assert not world.engine.is_broken
    world.check_ended()


def test_a_plan_that_cannot_be_launched_fails_after_the_one_before_it() -> None:
    world = _world()
    world.submit(submit("a", max_tokens=5, ignore_eos=True))
    world.step(2)
    _runner(world).failing_launches = 1
    heard = world.step()
    # What was in flight has come.
    assert [event.start_index for event in heard if isinstance(event, Tokens)] == [1]
    world.submit(submit("b", max_tokens=3, ignore_eos=True))
    world.step()
    assert world.reason("a") == "error"
    world.run()
    assert world.reason("b") == "length"
    assert [record.failed for record in world.engine.records_since(0)] == [False, False, True, False, False, False]
    world.check_ended()


def test_an_engine_whose_launches_all_fail_is_broken() -> None:
    world = _world()
    _runner(world).failing_launches = 10
    for name in "abc":
        world.submit(submit(name))
        world.step(2)
    assert world.engine.is_broken


def test_a_row_that_fails_takes_its_row_in_flight_with_it() -> None:
    world = _world()
    world.submit(submit("a", max_tokens=5, ignore_eos=True), submit("b", max_tokens=5, ignore_eos=True))
    world.step(2)
    world.runner.failing_keys = {world.plan.chunks[0].key}
    world.step()
    assert world.reason("a") == "error"
    world.runner.failing_keys = set()
    world.run()
    assert world.reason("b") == "length"
    assert world.counts().discarded_tokens_total == 1
    world.check_ended()


def test_a_change_of_the_tunables_acts_on_the_step_after_the_one_that_is_in_flight() -> None:
    world = _world(tunables={"max_running": 1})
    world.submit(*[submit(f"r{i}", max_tokens=9, ignore_eos=True) for i in range(5)])
    world.step(2)
    world.retune(max_running=4, order="fair", mode="static", prefix_caching="off")
    world.run()
    records = world.engine.records_since(0)
    # Two were planned under the first, whatever ran when their results came.
    assert [record.tunables_version for record in records][:3] == [0, 0, 1]
    assert [record.mode for record in records][:3] == ["continuous", "continuous", "static"]
    assert max(len(record.members) for record in records) == 4
    world.check_ended()


def test_guessing_keeps_nothing_of_those_that_ended_while_every_step_is_planned_ahead() -> None:
    world = _world(vocab_size=100_000, tunables={"speculation": "on"})
    for number in range(80):
        world.submit(submit(f"r{number}", max_tokens=4, ignore_eos=True))
        world.step()
    assert _runner(world).num_launched_behind == 79
    assert world.engine._scheduler._planner.speculator.num_known < 30
