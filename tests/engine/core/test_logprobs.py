"""What a runner tells of tokens' probabilities reaches their owner once, whatever happens on the way."""

from __future__ import annotations

from typing import Any

import pytest

from serving.contracts.messages import TokenLogprobs, Tokens
from serving.engine.plan import MOST_READ_TOKENS, StepPlan, StepResult
from tests.engine.core.harness import World, submit
from tests.engine.core.runners import EOS


def _entry(position: int, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-float(position), [token_id], [-1.0])


def _telling(**options: Any) -> World:
    """A world whose runner tells of each token by its position."""
    world = World(**options)
    compute = world.runner.run

    def run(plan: StepPlan) -> StepResult:
        result = compute(plan)
        for index, chunk in enumerate(plan.chunks):
            if chunk.params.num_logprobs is not None and result.token_ids[index]:
                entries = [_entry(chunk.end + i, id_) for i, id_ in enumerate(result.token_ids[index])]
                result.logprobs[index] = entries
            if chunk.params.num_prompt_logprobs is not None and chunk.sample_index == 0:
                last = min(chunk.end, chunk.num_prompt_tokens - 1)
                result.prompt_logprobs[index] = [
                    _entry(position, chunk.context[position]) for position in range(chunk.start + 1, last + 1)
                ]
        return result

    world.runner.run = run  # type: ignore[method-assign]
    return world


def _heard(world: World, name: str) -> list[Tokens]:
    heard = []
    while world.engine.has_work:
        heard += [event for event in world.step() if isinstance(event, Tokens) and event.key.request_id == name]
    return heard


def test_a_prompt_preempted_in_the_middle_is_told_of_once() -> None:
    world = _telling(num_blocks=8, tunables={"max_prefill_chunk": 2})
    world.submit(submit("old", prompt=8, max_tokens=12, ignore_eos=True))
    world.step(4)
    request = submit("asks", prompt=20, max_tokens=3, ignore_eos=True, num_prompt_logprobs=0, num_logprobs=0)
    world.submit(request)
    heard = _heard(world, "asks")
    assert world.counts().preemptions_total > 0
    told = [event.prompt_logprobs for event in heard]
    assert told[0] == [_entry(position, request.prompt_ids[position]) for position in range(1, 20)]
    assert told[1:] == [None] * (len(heard) - 1)
    entries = [entry for event in heard for entry in event.logprobs or []]
    assert entries == [_entry(20 + index, id_) for index, id_ in enumerate(world.tokens("asks"))]
    world.check_ended()


def test_tokens_after_the_end_are_told_of_no_more_than_they_are_given() -> None:
    """A runner may compute several tokens in a step; what comes after the end is nobody's."""
    world = _telling()
    compute = world.runner.run

    def run(plan: StepPlan) -> StepResult:
        compute(plan)
        token_ids = [[5, EOS, 6] if chunk.samples else [] for chunk in plan.chunks]
        entries = {index: [_entry(i, id_) for i, id_ in enumerate(ids)] for index, ids in enumerate(token_ids) if ids}
        return StepResult(token_ids, logprobs=entries)

    world.runner.run = run  # type: ignore[method-assign]
    world.submit(submit("a", max_tokens=9, num_logprobs=0))
    (event,) = _heard(world, "a")
    assert event.token_ids == [5, EOS]
    assert event.logprobs == [_entry(0, 5), _entry(1, EOS)]


def test_who_does_not_ask_is_told_nothing() -> None:
    world = _telling()
    world.submit(submit("a", max_tokens=5))
    assert all(event.logprobs is None and event.prompt_logprobs is None for event in _heard(world, "a"))


def _read_tokens(world: World) -> int:
    """Of the last plan."""
    return sum(len(chunk.token_ids) for chunk in world.plan.chunks if chunk.reads_prompt)


@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_prompts_are_read_few_tokens_at_a_time_and_hold_up_nobody(mode: str) -> None:
    """Each position read costs a whole vocabulary: streams and other prompts go on beside them."""
    world = _telling(num_blocks=1024, tunables={"mode": mode, "max_batch_tokens": 256, "max_prefill_chunk": 256})
    asks = [submit(f"asks{i}", prompt=n, max_tokens=3, num_prompt_logprobs=0) for i, n in enumerate((150, 10, 90))]
    world.submit(*asks, submit("plain", prompt=180, max_tokens=2, ignore_eos=True))
    read = []
    while world.engine.has_work:
        world.step()
        read.append(_read_tokens(world))
        if len(read) == 1:
            assert world.members() == {"asks0": MOST_READ_TOKENS, "plain": 180}
    assert max(read) == MOST_READ_TOKENS
    assert sum(read) == 150 + 10 + 90
    world.check_ended()


def test_what_is_computed_again_for_a_prompt_that_was_told_of_is_not_read_again() -> None:
    world = _telling(num_blocks=40, tunables={"max_prefill_chunk": 256})
    world.submit(submit("a", prompt=100, generated=[5, 6, 7], max_tokens=9, num_prompt_logprobs=0, ignore_eos=True))
    world.step()
    assert world.members() == {"a": 103}
    assert _read_tokens(world) == 0


def test_choices_share_the_prompt_that_one_of_them_reads() -> None:
    """The first asks for all of them: its siblings wait until it is computed, and find it."""
    world = _telling(num_blocks=256, tunables={"max_batch_tokens": 512, "prefix_caching": "off"})
    prompt = list(range(1, 201))
    asks = submit("a", prompt=prompt, max_tokens=4, ignore_eos=True, num_prompt_logprobs=0)
    world.submit(asks, *[submit("a", prompt=prompt, choice=i, max_tokens=4, ignore_eos=True) for i in range(1, 4)])
    heard = _heard(world, "a")
    told = {event.key.choice: event.prompt_logprobs for event in heard if event.start_index == 0}
    assert told == {0: [_entry(position, prompt[position]) for position in range(1, 200)], 1: None, 2: None, 3: None}
    num_prefill = sum(plan.num_prefill_tokens for plan in world.runner.plans)
    assert 200 < num_prefill <= 200 + 3 * world.runner.block_size
    world.check_ended()
