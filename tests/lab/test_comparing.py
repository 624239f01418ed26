"""Differences between groups of runs: real ones are marked, and those of chance are not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from serving.contracts.errors import InvalidValue
from serving.lab.comparing import Comparison, Difference, PlayedRun, RunFigure, compare, figures_of
from serving.lab.summaries import Outcome
from serving.lab.workloads.workload import Slo

pytestmark = pytest.mark.heavy

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
            end_seconds=100.0 * float(rng.random()),
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


def test_one_failure_more_or_less_is_no_difference() -> None:
    """Of a run without any nothing can be drawn but none: it is the other's failures that must be hardly ever none."""
    sound = run(seed=1)
    once = msgspec.structs.replace(
        sound, outcomes=[msgspec.structs.replace(sound.outcomes[0], ending="failed"), *sound.outcomes[1:]]
    )
    for first, second in ((once, sound), (sound, once)):
        assert not of(compare([first], [second]), "Failed").is_real
    often = msgspec.structs.replace(
        sound, outcomes=[msgspec.structs.replace(each, ending="failed") for each in sound.outcomes[:60]]
    )
    assert of(compare([often], [sound]), "Failed").is_real


def test_a_tail_of_a_few_requests_is_shown_and_not_judged() -> None:
    found = compare([run(seed=1)], [run(seed=2, ttft=0.1)])
    tail = of(found, "TTFT p99")
    assert tail.not_judged == "too few requests: 200"
    assert (tail.is_real, tail.low, tail.first_interval) == (False, None, None)
    assert tail.change is not None
    assert of(found, "TTFT p95").not_judged == ""


def test_each_side_has_its_own_interval() -> None:
    found = of(compare([run(seed=1)], [run(seed=2, ttft=0.15)]), "TTFT mean")
    assert found.first_interval is not None
    assert found.second_interval is not None
    assert found.first_interval.low < found.first < found.first_interval.high
    assert found.second_interval.high < found.first_interval.low


@pytest.mark.parametrize("count", [200, 203])
def test_a_run_that_answers_everything_has_a_spread_of_its_rates_too(count: int) -> None:
    """Two or three requests more are no difference, though every request of both runs was answered."""
    found = compare([run(seed=1)], [run(seed=2, count=count)])
    for name in ("Requests", "Goodput", "Output"):
        difference = of(found, name)
        assert not difference.is_real, name
        assert difference.first_interval is not None
        assert difference.first_interval.low < difference.first < difference.first_interval.high, name
    faster = of(compare([run(seed=1)], [run(seed=2, count=400)]), "Requests")
    assert faster.is_real
    assert faster.change == 1.0


def test_a_rate_of_random_arrivals_has_the_spread_that_theory_says() -> None:
    """Of 1000 requests that end at random, the rate's error is the root of 1000, over the time: 10 ± 0.62 a second."""
    found = {figure.name: interval for figure, interval in figures_of([run(seed=1, count=1000)])}
    interval = found["Requests"]
    assert interval is not None
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * np.sqrt(1000) / 100, rel=0.35)


def with_memory(*sizes: float) -> list[PlayedRun]:
    return [
        msgspec.structs.replace(
            run(seed=seed, count=20), figures=(RunFigure(name="Memory", unit="MiB", better="less", value=size),)
        )
        for seed, size in enumerate(sizes)
    ]


def test_what_only_whole_runs_tell_is_judged_by_several_of_them() -> None:
    alone = of(compare(with_memory(100), with_memory(200)), "Memory")
    assert (alone.change, alone.is_real, alone.first_interval) == (1.0, False, None)
    assert "one run" in alone.not_judged
    stretches = tuple(100 + place % 3 for place in range(20))
    seen = [
        msgspec.structs.replace(
            each,
            figures=(msgspec.structs.replace(each.figures[0], blocks=tuple(factor * size for size in stretches)),),
        )
        for factor, each in zip((1, 2), with_memory(100, 200), strict=True)
    ]
    within = of(compare(seen[:1], seen[1:]), "Memory")
    assert within.is_real
    assert within.low is not None
    assert 0.9 < within.low < 1.0
    several = of(compare(with_memory(100, 101, 99, 100), with_memory(200, 202, 199, 201)), "Memory")
    assert several.is_real
    assert several.low is not None
    assert several.low > 0.8
    noisy = of(compare(with_memory(100, 160, 60), with_memory(130, 220, 90)), "Memory")
    assert not noisy.is_real


def test_intervals_of_a_share_hold_what_theory_says() -> None:
    """Of 400 requests of which a fifth was refused: the normal interval is 0.2 ± 1.96 * 0.02."""
    outcomes = [
        msgspec.structs.replace(each, ending="refused" if index % 5 == 0 else "finished")
        for index, each in enumerate(run(seed=1, count=400).outcomes)
    ]
    played = PlayedRun(outcomes=outcomes, measured_seconds=100.0, slos=SLOS)
    found = {figure.name: interval for figure, interval in figures_of([played])}
    refused = found["Refused"]
    assert refused is not None
    assert refused.low == pytest.approx(0.1608, abs=0.005)
    assert refused.high == pytest.approx(0.2392, abs=0.005)


def test_an_interval_of_a_large_run_is_as_one_of_its_values_one_by_one() -> None:
    """More values than there are bins: the p95 of a lognormal, whose quantile's error is known."""
    large = run(seed=3, count=20_000)
    found = {figure.name: (figure.value, interval) for figure, interval in figures_of([large])}
    value, interval = found["TTFT p95"]
    assert interval is not None
    z = 1.6449
    density = float(np.exp(-z * z / 2) / np.sqrt(2 * np.pi)) / (0.5 * value)
    half = 1.96 * float(np.sqrt(0.05 * 0.95 / 20_000)) / density
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.2)
    assert interval.low < value < interval.high
