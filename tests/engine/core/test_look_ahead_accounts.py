"""What an engine that looks ahead tells of its steps: counts, times, and a sequence's own account."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from serving.contracts.messages import Finished
from serving.engine.engine import Engine
from serving.engine.plan import PlannedChunk, StepPlan, StepResult, StepTimes
from tests.engine.core.harness import World, submit
from tests.engine.core.runners import AheadCacheRunner


def _world(**changes: Any) -> World:
    return World(**{"num_blocks": 64, "looks_ahead": True, **changes})


@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_counts_are_those_of_the_steps_whose_results_were_taken_in(mode: str) -> None:
    world = _world(tunables={"mode": mode})
    world.submit(submit("a", prompt=6, max_tokens=4, ignore_eos=True))
    world.step()
    assert (world.counts().steps_total, world.counts().prompt_tokens_total) == (0, 0)
    world.step(2)
    counts = world.counts()
    assert (counts.steps_total, counts.prompt_tokens_total, counts.generated_tokens_total) == (2, 6, 2)
    assert (counts.prefill_tokens_total, counts.decode_tokens_total) == (6, 1)
    assert [record.step for record in world.engine.records_since(0)] == [1, 2]
    world.run()
    assert world.counts().steps_total == 4


def test_a_static_batch_counts_the_places_of_those_that_are_known_to_end_as_idle() -> None:
    padded = []
    for looks_ahead in (False, True):
        world = _world(looks_ahead=looks_ahead, tunables={"mode": "static"})
        world.submit(*[submit(f"r{n}", prompt=3, max_tokens=n, ignore_eos=True) for n in (2, 3, 5)])
        world.run()
        padded.append([plan.num_padded_tokens for plan in world.runner.plans])
    assert padded[0] == padded[1]
    assert sum(padded[0]) == 1 + 2 + 2


class _TimedRunner(AheadCacheRunner):
    """Each step takes eleven milliseconds, of which six are waited for if it was launched behind another."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.now = 0.0

    def collect(self, plan: StepPlan, chunks: tuple[PlannedChunk, ...]) -> StepResult:
        self.now += 0.011 if plan.step == 1 else 0.006
        result = super().collect(plan, chunks)
        times = StepTimes(prepare_seconds=0.001, forward_seconds=0.008, sample_seconds=0.002)
        return StepResult(result.token_ids, times)


def test_the_times_of_steps_do_not_overlap_and_their_parts_are_within_them() -> None:
    runner = _TimedRunner()
    reads = itertools.count()

    def clock() -> float:
        """Each look at it takes half a millisecond."""
        return runner.now + next(reads) * 0.0005

    world = _world()
    engine = Engine(runner, tunables=world.tunables, clock=clock)
    engine.submit(submit("a", max_tokens=10, ignore_eos=True))
    while engine.has_work:
        engine.step()
    records = engine.records_since(0)
    assert len(records) == 10
    for before, record in itertools.pairwise(records):
        assert record.started_at == pytest.approx(before.started_at + before.total_seconds)
        assert record.schedule_seconds == record.prepare_seconds == 0
        assert record.hidden_seconds == pytest.approx(0.001)
        assert 0.006 <= record.total_seconds < 0.011
    assert records[0].hidden_seconds == 0
    for record in records:
        parts = record.schedule_seconds + record.prepare_seconds + record.forward_seconds + record.sample_seconds
        assert 0.006 <= parts + record.update_seconds <= record.total_seconds + 1e-9
        assert record.forward_seconds == pytest.approx(4 * record.sample_seconds)
    assert engine.counts().step_seconds_total == pytest.approx(sum(record.total_seconds for record in records))


def test_a_sequences_own_account_follows_its_steps_without_a_gap() -> None:
    world = _world(tunables={"max_prefill_chunk": 4})
    world.submit(submit("a", prompt=8, max_tokens=5, ignore_eos=True))
    while world.engine.has_work:
        world.now += 0.01
        world.step()
    ending = world.ending("a")
    assert isinstance(ending, Finished)
    spans = ending.timings.spans
    assert [(span.kind, span.num_tokens) for span in spans] == [("prefill", 4), ("prefill", 4), ("decode", 4)]
    for before, span in itertools.pairwise(spans):
        assert span.offset_ms == pytest.approx(before.offset_ms + before.duration_ms)
