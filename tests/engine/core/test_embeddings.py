"""Prompts to embed are scheduled like all others, computed whole, and end with what their runner made of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serving.contracts.messages import Finished, Refused, Scheduled, Submit, Tokens
from serving.engine.plan import MOST_READ_TOKENS, StepPlan, StepResult
from tests.engine.core.harness import World, submit
from tests.engine.core.runners import embedding_of


def asking(name: str = "e", *, prompt: int = 20, **options: Any) -> Submit:
    return submit(name, prompt=prompt, max_tokens=0, embeds=True, **options)


def test_a_prompt_is_embedded_in_one_step_and_its_owner_hears_of_no_token() -> None:
    world = World()
    world.submit(request := asking())
    events = world.step()
    assert [type(event) for event in events[1:]] == [Scheduled, Finished]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.num_generated) == ("stop", 0)
    assert finished.embedding == embedding_of(request.prompt_ids)
    assert not any(chunk.samples for chunk in world.plan.chunks)
    counts = world.counts()
    assert (counts.prompt_tokens_total, counts.generated_tokens_total, counts.left_total) == (20, 0, 1)
    world.check_ended()


def test_its_time_is_that_of_waiting_and_of_prefill() -> None:
    world = World(tunables={"max_prefill_chunk": 10})
    world.submit(asking())
    world.now += 3
    world.step()
    world.now += 2
    (finished,) = world.step()
    assert isinstance(finished, Finished)
    timings = finished.timings
    assert (timings.queue_seconds, timings.prefill_seconds, timings.decode_seconds) == (3, 2, 0)


def test_it_may_fill_the_whole_context_and_no_more() -> None:
    world = World(num_blocks=5)
    world.submit(asking("fits", prompt=20), asking("exceeds", prompt=21))
    world.run()
    assert (world.reason("fits"), world.reason("exceeds")) == ("stop", "context_length_exceeded")


def test_it_takes_chunks_of_the_prefill_budget_beside_decodes_which_go_on() -> None:
    """More of them than a prompt whose tokens are told of would have."""
    assert MOST_READ_TOKENS < 90
    world = World(tunables={"max_batch_tokens": 96, "max_prefill_chunk": 90})
    world.submit(submit("writes", prompt=4, max_tokens=30, ignore_eos=True))
    world.step()
    world.submit(asking(prompt=180))
    for _ in range(2):
        world.step()
        assert world.members() == {"writes": 1, "e": 90}
    assert world.reason("e") == "stop"
    world.run()
    world.check_ended()


def test_a_prompt_preempted_in_the_middle_is_summed_up_anew() -> None:
    world = World(num_blocks=8, tunables={"max_prefill_chunk": 2})
    world.submit(submit("old", prompt=8, max_tokens=12, ignore_eos=True))
    world.step(4)
    world.submit(asking(prompt=20))
    world.run()
    assert world.counts().preemptions_total > 0
    assert world.reason("e") == "stop"
    world.check_ended()


def test_what_is_cached_of_its_prompt_is_computed_again_and_what_it_computes_is_cached() -> None:
    world = World()
    world.submit(submit("a", stem="s", prompt=20, max_tokens=1))
    world.run()
    world.submit(asking("b", stem="s"))
    world.run()
    assert world.members() == {"b": 20}
    assert world.counts().prefix_query_tokens_total == 20
    world.submit(submit("c", stem="s", prompt=20, max_tokens=1))
    world.run()
    assert world.members() == {"c": 4}
    world.check_ended()


def test_a_later_attempt_computes_it_anew() -> None:
    world = World(tunables={"max_prefill_chunk": 8})
    world.submit(request := asking())
    world.step()
    world.submit(msgspec.structs.replace(request, attempt=2))
    world.run()
    world.check_ended()
    assert world.reason("e") == "stop"


@pytest.mark.parametrize("change", [{"generated_ids": [5]}, {"prompt_ids": []}])
def test_what_cannot_be_embedded_is_refused(change: dict[str, Any]) -> None:
    world = World()
    world.submit(msgspec.structs.replace(asking(), **change))
    (refused,) = world.step()
    assert isinstance(refused, Refused)
    assert refused.code == "invalid_value"


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_runner_that_tells_nothing_of_it_fails_the_step(num_steps: int) -> None:
    """Whether it was to tell of a part or of the whole; else its owner would wait for ever."""
    world = World(tunables={"max_prefill_chunk": 10})
    world.submit(asking(), submit("writes", prompt=2, max_tokens=9, ignore_eos=True))
    world.step(num_steps - 1)
    compute = world.runner.run

    def forget(plan: StepPlan) -> StepResult:
        result = compute(plan)
        result.embeddings.clear()
        result.hidden_sums.clear()
        return result

    world.runner.run = forget  # type: ignore[method-assign]
    events = world.step()
    assert [event.reason for event in events if isinstance(event, Finished)] == ["error", "error"]
    assert not world.engine.has_work


def test_one_that_cannot_be_computed_ends_in_its_own_error() -> None:
    world = World()
    world.submit(request := asking(), submit("writes", prompt=2, max_tokens=3, ignore_eos=True))
    world.runner.failing_keys = {request.key}
    events = world.step()
    assert [event.reason for event in events if isinstance(event, Finished)] == ["error"]
    assert any(isinstance(event, Tokens) for event in events)
    world.run()
    assert world.reason("writes") == "length"


def test_in_static_batches_its_place_stands_empty_until_the_batch_ends() -> None:
    world = World(tunables={"mode": "static", "max_running": 2})
    world.submit(asking(), submit("writes", prompt=20, max_tokens=3, ignore_eos=True), asking("later"))
    world.run()
    assert world.counts().padded_tokens_total == 2
    world.check_ended()
