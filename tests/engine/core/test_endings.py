"""Why a sequence ends, and what its owner hears with the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.contracts.messages import Accepted, Finished, Tokens
from serving.contracts.tunables import Tunables
from serving.engine.plan import PlannedChunk, StepResult
from serving.engine.scheduler import Scheduler
from tests.engine.core.harness import World, step_by_step, submit
from tests.engine.core.runners import EOS

pytestmark = pytest.mark.usefixtures("either_runner")


def _scripted(tokens: list[int]) -> World:
    world = World()
    script: Iterator[int] = iter(tokens)

    def choose(context: list[int], chunk: PlannedChunk) -> int:
        return next(script)

    world.runner.script = choose
    return world


def test_ends_at_eos_and_emits_it() -> None:
    world = _scripted([5, 6, EOS])
    world.submit(submit("a", max_tokens=20))
    world.run()
    assert (world.tokens("a"), world.reason("a")) == ([5, 6, EOS], "stop")


def test_ignores_eos_on_request() -> None:
    world = _scripted([EOS, EOS, 5])
    world.submit(submit("a", max_tokens=3, ignore_eos=True))
    world.run()
    assert (world.tokens("a"), world.reason("a")) == ([EOS, EOS, 5], "length")


def test_stop_tokens_end_it_even_where_eos_does_not() -> None:
    world = _scripted([EOS, 5, 9])
    world.submit(submit("a", max_tokens=20, ignore_eos=True, stop_token_ids=(9, 11)))
    world.run()
    assert (world.tokens("a"), world.reason("a")) == ([EOS, 5, 9], "stop")


def test_nothing_but_length_ends_it_below_min_tokens() -> None:
    world = _scripted([EOS, 9, 5, EOS])
    world.submit(submit("a", max_tokens=20, min_tokens=3, stop_token_ids=(9,)))
    world.run()
    assert (world.tokens("a"), world.reason("a")) == ([EOS, 9, 5, EOS], "stop")


def test_ends_at_max_tokens() -> None:
    world = _scripted([5])
    world.submit(submit("a", max_tokens=1))
    world.run()
    assert (world.tokens("a"), world.reason("a")) == ([5], "length")


def test_stop_wins_where_the_last_allowed_token_is_eos() -> None:
    world = _scripted([5, EOS])
    world.submit(submit("a", max_tokens=2))
    world.run()
    assert world.reason("a") == "stop"


@step_by_step
def test_a_failed_row_ends_alone(world: World) -> None:
    world.submit(*[submit(name, max_tokens=9, ignore_eos=True) for name in "abc"])
    world.step(2)
    world.runner.failing_keys.add(submit("b").key)
    world.run()
    ending = world.ending("b")
    assert isinstance(ending, Finished)
    assert (ending.reason, ending.message, ending.num_generated) == ("error", "bad logits", 2)
    assert (world.reason("a"), world.reason("c")) == ("length", "length")
    world.check_ended()


def _scheduler() -> Scheduler:
    return Scheduler(
        num_blocks=64, block_size=4, max_model_len=256, eos_token_ids=frozenset({EOS}), tunables=Tunables()
    )


@pytest.mark.parametrize(
    ("came", "taken", "reason"),
    [([5, 6, 7], [5, 6, 7], None), ([5, EOS, 7], [5, EOS], "stop"), ([5, 6, 7, 8, 9], [5, 6, 7, 8], "length")],
)
def test_of_several_tokens_at_once_those_after_the_end_are_dropped(
    came: list[int], taken: list[int], reason: str | None
) -> None:
    scheduler = _scheduler()
    scheduler.add(submit("a", max_tokens=4), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    events = [event for _, event in scheduler.update(plan, StepResult([came]), 1.0)]
    assert [event.token_ids for event in events if isinstance(event, Tokens)] == [taken]
    assert [event.reason for event in events if isinstance(event, Finished)] == ([reason] if reason else [])
    assert scheduler.counters.generated_tokens == len(taken)
    following = scheduler.schedule(1.0)
    assert (following is None) == (reason is not None)
    if following is not None:
        assert list(following.chunks[0].token_ids) == [5, 6, 7]
        assert following.chunks[0].sample_index == 3


@step_by_step
def test_first_tokens_and_finish_carry_the_timings(world: World) -> None:
    world.retune(max_prefill_chunk=4)
    world.submit(submit("a", prompt=8, max_tokens=3, ignore_eos=True, waited=2.0))
    world.now += 1.0
    timed = []
    for _ in range(4):
        events = world.step()
        timed += [event for event in events if isinstance(event, Tokens | Finished)]
        world.now += 0.5
    tokens = [event for event in timed if isinstance(event, Tokens)]
    assert [event.timings is not None for event in tokens] == [True, False, False]
    first, ending = tokens[0].timings, timed[-1]
    assert first is not None
    assert isinstance(ending, Finished)
    assert (first.queue_seconds, first.prefill_seconds) == (3.0, 0.5)
    assert first.decode_seconds == 0.0
    assert (ending.timings.queue_seconds, ending.timings.prefill_seconds) == (3.0, 0.5)
    assert ending.timings.decode_seconds == 1.0


def test_what_never_ran_spent_its_whole_time_queueing(world: World) -> None:
    world.retune(batch_window_ms=10_000)
    world.submit(submit("a"))
    world.step()
    world.now += 4.0
    world.abort("a")
    world.step()
    ending = world.ending("a")
    assert isinstance(ending, Finished)
    assert ending.timings.queue_seconds == 4.0
    assert ending.timings.prefill_seconds == ending.timings.decode_seconds == 0.0


def test_reminds_owners_of_all_that_lives_and_of_nothing_else(world: World) -> None:
    world.retune(max_running=1)
    world.submit(
        submit("done", max_tokens=1, ignore_eos=True), submit("runs", max_tokens=9, ignore_eos=True), submit("waits")
    )
    while not world.tokens("runs"):
        world.step()
    world.engine.remind()
    reminded = [event.key.request_id for _, event in world.engine.take_events() if isinstance(event, Accepted)]
    assert sorted(reminded) == ["runs", "waits"]


def test_those_who_wait_are_reminded_with_their_place_and_those_who_run_without(world: World) -> None:
    world.retune(max_running=1)
    world.submit(*[submit(name, max_tokens=9, ignore_eos=True) for name in ("runs", "b", "c", "d")])
    told = [event for event in world.step() if isinstance(event, Accepted)]
    assert [event.num_ahead for event in told] == [0, 1, 2, 3]
    world.abort("b")
    world.engine.remind()
    reminded = [event for _, event in world.engine.take_events() if isinstance(event, Accepted)]
    assert {event.key.request_id: event.num_ahead for event in reminded} == {"runs": None, "c": 0, "d": 1}


def test_counts_those_who_leave_the_batch_for_good_and_no_others() -> None:
    world = World(num_blocks=8, tunables={"max_running": 2})
    world.submit(*[submit(name, prompt=14, max_tokens=10, ignore_eos=True) for name in "ab"], submit("waits"))
    while world.counts().preemptions_total == 0:
        world.step()
    assert world.counts().left_total == 0
    world.abort("waits")
    world.run()
    assert world.counts().left_total == 2
