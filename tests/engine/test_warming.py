"""Before the first request an engine computes what it will compute under load, and keeps nothing of it."""

from __future__ import annotations

import gc

import pytest

from serving.contracts.tunables import Tunables
from serving.engine.plan import StepPlan, StepResult
from serving.engine.warming import set_aside, warm_up
from tests.engine.bench.scripted import ScriptedRunner


class FailingRunner(ScriptedRunner):
    """Cannot compute anything."""

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        raise RuntimeError("no kernel for this")


def test_steps_are_as_large_as_the_defaults_have_them_and_some_are_sampled() -> None:
    runner = ScriptedRunner()
    warm_up(runner)
    defaults = Tunables()
    assert max(plan.num_tokens for plan in runner.plans) == defaults.max_batch_tokens
    decodes = [plan for plan in runner.plans if plan.num_tokens == len(plan.chunks)]
    assert max(len(plan.chunks) for plan in decodes) == defaults.max_running
    assert {chunk.params.temperature for plan in decodes for chunk in plan.chunks} == {0.0, 1.0}


@pytest.mark.parametrize("num_blocks", [4, 16])
def test_a_small_cache_is_warmed_as_far_as_it_goes(num_blocks: int) -> None:
    runner = ScriptedRunner(num_blocks=num_blocks)
    warm_up(runner)
    assert 0 < len(runner.plans) <= 64


def test_what_cannot_be_computed_is_left_to_those_who_ask_for_it() -> None:
    runner = FailingRunner()
    warm_up(runner)
    assert 0 < len(runner.plans) <= 3


def test_what_is_there_before_the_first_request_is_looked_at_no_more() -> None:
    before: list[object] = []
    set_aside()
    try:
        assert gc.get_freeze_count() > 0
        assert not any(known is before for known in gc.get_objects())
    finally:
        gc.unfreeze()
