"""A runner that keeps memory for steps of some size is given none that is larger, whatever the tunables allow."""

from __future__ import annotations

import pytest

from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from tests.engine.core.harness import submit
from tests.engine.core.runners import AheadCacheRunner, CacheRunner


class BoundedRunner(CacheRunner):
    max_step_tokens: int | None = 32


class BoundedAheadRunner(AheadCacheRunner):
    max_step_tokens: int | None = 32


def run(engine: Engine) -> None:
    for number in range(12):
        engine.submit(submit(f"r{number}", prompt=50, max_tokens=20, ignore_eos=True))
    while engine.has_work:
        engine.step()


@pytest.mark.parametrize("runner_class", [BoundedRunner, BoundedAheadRunner])
@pytest.mark.parametrize("max_batch_tokens", [24, 4096])
def test_no_step_is_larger_than_the_memory_kept_for_it(
    runner_class: type[BoundedRunner | BoundedAheadRunner], max_batch_tokens: int
) -> None:
    runner = runner_class(num_blocks=400)
    engine = Engine(runner, tunables=Tunables(max_batch_tokens=max_batch_tokens, max_prefill_chunk=4096))
    run(engine)
    assert max(plan.num_tokens for plan in runner.plans) == min(32, max_batch_tokens)
    assert {record.max_batch_tokens for record in engine.records_since(0)} == {min(32, max_batch_tokens)}
    assert engine.counts().max_step_tokens == 32


def test_bound_holds_for_tunables_that_come_later() -> None:
    runner = BoundedRunner(num_blocks=400)
    engine = Engine(runner, tunables=Tunables(max_batch_tokens=16))
    engine.retune(2, Tunables(max_batch_tokens=65_536, max_running=3))
    assert (engine.tunables.max_batch_tokens, engine.tunables.max_running) == (32, 3)
    run(engine)
    assert max(plan.num_tokens for plan in runner.plans) == 32


def test_without_a_bound_the_tunable_alone_counts() -> None:
    for runner in (CacheRunner(num_blocks=400), BoundedRunner(num_blocks=400)):
        if isinstance(runner, BoundedRunner):
            runner.max_step_tokens = None
        engine = Engine(runner, tunables=Tunables(max_batch_tokens=500, max_prefill_chunk=500))
        run(engine)
        assert max(plan.num_tokens for plan in runner.plans) == 500
        assert engine.counts().max_step_tokens is None
