"""Differences between groups of runs: real ones are marked, and those of chance are not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from serving.contracts.errors import InvalidValue
from serving.lab.comparing import Comparison, Difference, PlayedRun, compare
from serving.lab.summaries import Outcome
from serving.lab.workloads.workload import Slo

SLOS = {"a": Slo(ttft_ms=1000)}


def run(*, seed: int, ttft: float = 0.3, count: int = 200, refused: float = 0.0, own: float = 0.0) -> PlayedRun:
    """Requests whose TTFT is lognormal; `own` is how much a run differs from others by itself."""
    rng = np.random.default_rng(seed)
    factor = float(np.exp(own * rng.standard_normal()))
    outcomes = [
        Outcome(
            index=index,
            request_class="a",
            tenant="",
            due_seconds=0.0,
            end_seconds=1.0,
            ending="refused" if rng.random() < refused else "finished",
            num_prompt_tokens=10,
            num_output_tokens=20,
            is_streamed=True,
            ttft_seconds=ttft * factor * float(np.exp(0.5 * rng.standard_normal())),
            tpot_seconds=0.02,
            e2e_seconds=2.0,
        )
        for index in range(count)
    ]
    return PlayedRun(outcomes=outcomes, measured_seconds=100.0, slos=SLOS)


def of(comparison: Comparison, name: str) -> Difference:
    return next(each for each in comparison.differences if each.name == name)


def test_half_the_latency_is_real() -> None:
    found = of(compare([run(seed=1)], [run(seed=2, ttft=0.15)]), "TTFT p50")
    assert found.is_real
    assert found.change == pytest.approx(-0.5, abs=0.12)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.change < found.high < 0


@pytest.mark.heavy
def test_the_same_again_is_hardly_ever_said_to_differ() -> None:
    """Of twenty comparisons of like with like a few percent at most are called real."""
    marked = [
        any(each.is_real for each in compare([run(seed=2 * n, count=60)], [run(seed=2 * n + 1, count=60)]).differences)
        for n in range(20)
    ]
    assert sum(marked) <= 3


def test_what_runs_differ_by_of_themselves_is_no_difference() -> None:
    first = [run(seed=seed, own=0.6) for seed in range(3)]
    second = [run(seed=seed + 50, own=0.6, ttft=0.36) for seed in range(3)]
    several = compare(first, second)
    assert several.knows_noise
    assert not of(several, "TTFT p50").is_real
    alone = compare([run(seed=1)], [run(seed=9, ttft=0.45)])
    assert not alone.knows_noise
    assert of(alone, "TTFT p50").is_real


def test_refusals_of_which_there_were_none_are_real_where_there_are_many() -> None:
    found = of(compare([run(seed=1)], [run(seed=2, refused=0.3)]), "Refused")
    assert (found.first, found.change, found.is_real) == (0.0, None, True)
    assert not of(compare([run(seed=1)], [run(seed=2)]), "Refused").is_real


def test_the_warm_up_is_left_out_and_what_nobody_measured_is_not_compared() -> None:
    warm = run(seed=1)
    cold = [msgspec.structs.replace(each, is_warm_up=True, ttft_seconds=99.0) for each in warm.outcomes[:50]]
    both = msgspec.structs.replace(warm, outcomes=[*cold, *warm.outcomes])
    found = compare([warm], [both])
    assert of(found, "TTFT p95").change == 0
    assert "Queue time p95" not in {each.name for each in found.differences}


def test_the_same_seed_says_the_same() -> None:
    assert compare([run(seed=1)], [run(seed=2)]) == compare([run(seed=1)], [run(seed=2)])


@pytest.mark.parametrize("count", [0, 21])
def test_groups_that_cannot_be_compared_are_refused(count: int) -> None:
    with pytest.raises(InvalidValue, match="first"):
        compare([run(seed=1, count=1)] * count, [run(seed=2)])
