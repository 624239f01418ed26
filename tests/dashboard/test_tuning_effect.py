"""What a version did: two stretches of ten minutes, and when they may be compared."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from dashboard.tuning_effect import Effect, effect_of
from serving.telemetry.frames import IntervalSummaries
from serving.telemetry.history_selectors import Measured
from serving.telemetry.sketches import IntervalSummary
from serving.tuning.effects import Dated, stretches_of

NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)


@dataclasses.dataclass
class Version:
    number: int
    created_at: datetime.datetime
    canary: Canary | None = None


@dataclasses.dataclass
class Canary:
    state: str
    ended_at: datetime.datetime | None


def stored(number: int, minutes_ago: float) -> Dated:
    return Version(number, NOW - datetime.timedelta(minutes=minutes_ago))


def measured(ttft_ms: float | None = None, *, count: int = 100, seconds: int = 600, rate: float = 50.0) -> Measured:
    value = None if ttft_ms is None else ttft_ms / 1000
    ttft = IntervalSummary(count=count, mean=value, p50=value, p90=value, p95=value, p99=value)
    return Measured(
        seconds=seconds,
        intervals=IntervalSummaries(ttft_seconds=IntervalSummary() if value is None else ttft),
        counts={},
        means={"generated_tokens_per_second": rate},
    )


def compare(before: Measured | None, after: Measured | None, *, minutes_ago: float = 60, **neighbours: Any) -> Effect:
    given = {"older": stored(1, 500), "newer": None, **neighbours}
    return effect_of(stretches_of(stored(2, minutes_ago), now=NOW, **given), before, after)


def told(effect: Effect, title: str = "TTFT p95") -> tuple[str, str, str, str]:
    (figure,) = (figure for figure in effect.figures if figure.title == title)
    return figure.before, figure.after, figure.change, figure.words


def test_the_first_minutes_are_shown_and_not_judged() -> None:
    early = compare(measured(900), measured(80), minutes_ago=2)
    assert told(early) == ("900 ms", "80 ms", "", "")
    assert told(compare(measured(900), measured(80), minutes_ago=4))[3] == "better"


def test_ten_minutes_on_each_side_are_compared() -> None:
    stretches = stretches_of(stored(2, 60), older=stored(1, 500), newer=stored(3, 5), now=NOW)
    assert (stretches.at - stretches.since, stretches.until - stretches.at) == (datetime.timedelta(minutes=10),) * 2
    assert (stretches.next_number, stretches.is_open) == (None, False)


def test_neighbours_cut_the_stretches_short() -> None:
    stretches = stretches_of(stored(2, 60), older=stored(1, 63), newer=stored(3, 58), now=NOW)
    assert stretches.at - stretches.since == datetime.timedelta(minutes=3)
    assert stretches.until - stretches.at == datetime.timedelta(minutes=2)
    assert stretches.next_number == 3
    effect = effect_of(stretches, measured(100, seconds=180), measured(90, seconds=120))
    assert effect.note == "Only 3 min before it are known; only 2 min after it, until version 3."


def test_what_was_tried_on_one_engine_is_judged_by_when_all_ran_it() -> None:
    tried = Version(2, NOW - datetime.timedelta(minutes=90), Canary("promoted", NOW - datetime.timedelta(minutes=40)))
    stretches = stretches_of(tried, older=stored(1, 500), newer=stored(3, 33), now=NOW)
    assert (stretches.since, stretches.stored_at) == (NOW - datetime.timedelta(minutes=100), tried.created_at)
    assert (stretches.at, stretches.until) == tuple(NOW - datetime.timedelta(minutes=m) for m in (40, 33))
    after = stretches_of(stored(3, 33), older=tried, newer=None, now=NOW)
    assert after.stored_at - after.since == datetime.timedelta(minutes=7)
    tried.canary = Canary("withdrawn", NOW - datetime.timedelta(minutes=40))
    assert stretches_of(tried, older=stored(1, 500), newer=stored(3, 40), now=NOW).at == tried.created_at


def test_a_gap_after_it_is_told() -> None:
    assert compare(measured(100), measured(90, seconds=120)).note == "Only 2 min after it are known."


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (200, 100, ("200 ms", "100 ms", "↓ 50 %", "better")),
        (100, 150, ("100 ms", "150 ms", "↑ 50 %", "worse")),
        (100, 104, ("100 ms", "104 ms", "→", "about the same")),
        (1.5, 30, ("1.5 ms", "30 ms", "↑ 20 ×", "worse")),
        (100, None, ("100 ms", "–", "", "too few to compare")),
        (None, None, ("–", "–", "", "too few to compare")),
    ],
)
def test_durations_are_better_when_they_are_shorter(
    before: float | None, after: float | None, expected: tuple[str, ...]
) -> None:
    assert told(compare(measured(before), measured(after))) == expected


@pytest.mark.parametrize("counts", [(4, 100), (100, 4)])
def test_few_samples_on_either_side_are_shown_and_not_judged(counts: tuple[int, int]) -> None:
    effect = compare(measured(200, count=counts[0]), measured(100, count=counts[1]))
    assert told(effect) == ("200 ms", "100 ms", "", "too few to compare")
    figure = effect.headline[0]
    assert (figure.samples_before, figure.samples_after) == tuple(map(str, counts))


def test_more_tokens_are_more_and_neither_better_nor_worse() -> None:
    effect = compare(measured(100, rate=50), measured(100, rate=80))
    assert told(effect, "Generated tokens/s") == ("50.0", "80.0", "↑ 60 %", "more")
    assert [figure.title for figure in effect.headline] == ["TTFT p95", "ITL p95", "E2E p95", "Generated tokens/s"]


def test_while_the_ten_minutes_run_it_is_not_enough_yet() -> None:
    assert compare(measured(100), measured(90, seconds=240), minutes_ago=4.5).note == (
        "Not enough yet: 4 min of 10 min after it are measured."
    )
    fresh = compare(measured(100), None, minutes_ago=0)
    assert (fresh.is_open, fresh.note) == (True, "Not enough yet: 0 s of 10 min after it are measured.")


def test_nothing_measured_is_said() -> None:
    assert compare(None, None).note == "Nothing was measured around it, or it is kept no longer."
    assert compare(None, measured(90)).note == "Nothing was measured before it."
    assert compare(measured(90), None).note == "Nothing was measured after it."
