"""What an autopilot decides, without a database: scripted figures, and a pool whose latency follows its tunables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables, describe
from serving.lab.autopilot.deciding import Decision, Measured, Memory, Trial, View, after_judgement, decide
from serving.lab.autopilot.levers import LEVERS, REMEDIES, Sight, moved
from serving.lab.autopilot.terms import Lever, Objective, Terms, decode_terms

TTFT = Objective("ttft_p95", 1000.0)
ITL = Objective("itl_p95", 100.0)
TERMS = Terms(
    objectives=(TTFT, ITL),
    levers=(Lever("max_running", 4, 64), Lever("max_prefill_chunk", 64, 512), Lever("batch_window_ms", 0, 500)),
    missed_seconds=60,
    judged_seconds=120,
    retry_seconds=600,
    calm_seconds=300,
)
FULL = Sight(num_waiting=9, num_running=32, kv_used_ratio=0.4)
QUIET = Sight(num_waiting=0, num_running=2, kv_used_ratio=0.1)


class Flight:
    """An autopilot over a scripted pool: what it decides is carried out at once, every ten seconds."""

    def __init__(self, terms: Terms = TERMS, tunables: Tunables | None = None) -> None:
        self.terms = terms
        self.tunables = tunables or Tunables()
        self.memory = Memory(version=1)
        self.now = 1000.0
        self.moves: list[tuple[str, Any, Any]] = []
        self.verdicts: list[str] = []
        self.reasons: list[str] = []
        self.judged: list[str] = []

    def go(
        self,
        seconds: float,
        figures: Callable[[Tunables], dict[str, float]],
        *,
        sight: Sight = FULL,
        samples: int = 100,
    ) -> None:
        for _ in range(int(seconds / 10)):
            self.now += 10
            metrics = {
                name: Measured(value_ms=value, num_samples=samples) for name, value in figures(self.tunables).items()
            }
            decision = decide(
                self.terms, self.memory, View(now=self.now, metrics=metrics, sight=sight, tunables=self.tunables)
            )
            self._carry_out(decision, metrics)

    def _carry_out(self, decision: Decision, metrics: dict[str, Measured]) -> None:
        assert decision.move is None or decision.judgement is None, "one thing at a time"
        self.memory = decision.memory
        if decision.judgement is not None:
            trial = self.memory.trial
            assert trial is not None
            self.verdicts.append(decision.judgement.verdict)
            self.judged.append(decision.judgement.reason)
            if decision.judgement.verdict == "undone":
                self.tunables = self.tunables.changed({trial.field: trial.before})
            self.memory = after_judgement(self.terms, self.memory, decision.judgement, now=self.now)
        if decision.move is not None:
            move = decision.move
            assert self.memory.trial is None, "a move was made while another was on trial"
            self.moves.append((move.field, move.before, move.value))
            self.reasons.append(move.reason)
            self.tunables = self.tunables.changed({move.field: move.value})
            measured = metrics.get(move.metric)
            trial = Trial(
                move_id=len(self.moves),
                field=move.field,
                before=move.before,
                after=move.value,
                metric=move.metric,
                value_ms=None if measured is None else measured.value_ms,
                missed=tuple(self.memory.missed_since),
                made_at=self.now,
            )
            self.memory = msgspec.structs.replace(self.memory, trial=trial, missed_since={}, calm_since=None)


def test_nothing_is_moved_while_objectives_are_met() -> None:
    flight = Flight()
    flight.go(3600, lambda _: {"ttft_p95": 900, "itl_p95": 90})
    assert flight.moves == []
    assert flight.memory.says == "all objectives are met"


def test_a_miss_that_does_not_last_moves_nothing() -> None:
    flight = Flight()
    for _ in range(20):
        flight.go(50, lambda _: {"ttft_p95": 5000, "itl_p95": 50})
        flight.go(10, lambda _: {"ttft_p95": 500, "itl_p95": 50})
    assert flight.moves == []


def test_too_few_samples_move_nothing() -> None:
    flight = Flight()
    flight.go(3600, lambda _: {"ttft_p95": 5000}, samples=19)
    assert flight.moves == []


def test_a_full_batch_with_a_queue_is_enlarged_until_the_objective_is_met() -> None:
    flight = Flight()
    flight.go(3600, lambda tunables: {"ttft_p95": 40_000 / tunables.max_running, "itl_p95": 50})
    assert [move[0] for move in flight.moves] == ["max_running"]
    assert flight.tunables.max_running == 40
    assert flight.verdicts == ["kept"]
    assert "TTFT p95 of the last minute is 1250 ms, above 1000 ms" in flight.reasons[0]
    assert "32 of 32 places taken, 9 waiting, 40% of KV memory in use: max_running from 32 to 40" in flight.reasons[0]


def test_a_move_that_does_not_help_is_undone_and_not_tried_again_too_soon() -> None:
    flight = Flight()
    flight.go(500, lambda _: {"ttft_p95": 3000, "itl_p95": 50})
    assert flight.verdicts[0] == "undone"
    assert flight.tunables.max_running == 32
    assert [move[0] for move in flight.moves].count("max_running") == 1
    flight.go(700, lambda _: {"ttft_p95": 3000, "itl_p95": 50})
    assert [move[0] for move in flight.moves].count("max_running") == 2


def test_a_move_that_makes_another_objective_miss_is_undone_at_once() -> None:
    flight = Flight()
    flight.go(150, lambda tunables: {"ttft_p95": 40_000 / tunables.max_running, "itl_p95": 3.0 * tunables.max_running})
    assert flight.verdicts == ["undone"]
    assert flight.tunables.max_running == 32
    assert flight.judged == ["ITL p95 of the last minute is 120 ms, which is above its bound since the move"]


def test_what_gets_much_worse_is_undone_before_its_time() -> None:
    flight = Flight()
    flight.go(140, lambda tunables: {"ttft_p95": 40.0 * tunables.max_running**1.5, "itl_p95": 50})
    assert flight.verdicts == ["undone"]


def test_a_move_that_nobody_can_judge_is_undone_in_the_end() -> None:
    flight = Flight()
    flight.go(70, lambda _: {"ttft_p95": 3000, "itl_p95": 50})
    assert len(flight.moves) == 1
    flight.go(TERMS.judged_seconds * 4, lambda _: {})
    assert flight.verdicts == []
    flight.go(TERMS.judged_seconds * 2, lambda _: {})
    assert flight.verdicts == ["undone"]


def test_streams_that_stall_get_smaller_chunks_beside_them() -> None:
    flight = Flight()
    flight.go(800, lambda tunables: {"ttft_p95": 100, "itl_p95": tunables.max_prefill_chunk / 1.5}, sight=QUIET)
    assert {move[0] for move in flight.moves} == {"max_prefill_chunk"}
    assert flight.tunables.max_prefill_chunk / 1.5 <= 100
    assert set(flight.verdicts) == {"kept"}


def test_what_is_needed_no_longer_is_given_back_one_by_one() -> None:
    flight = Flight()
    flight.go(800, lambda tunables: {"ttft_p95": 100, "itl_p95": tunables.max_prefill_chunk / 1.5}, sight=QUIET)
    num_moves = len(flight.moves)
    flight.go(4000, lambda _: {"ttft_p95": 100, "itl_p95": 20}, sight=QUIET)
    assert flight.tunables == Tunables()
    assert len(flight.moves) == 2 * num_moves
    assert "back to" in flight.reasons[-1]


def test_what_is_given_back_too_early_is_taken_again() -> None:
    flight = Flight()
    flight.go(800, lambda tunables: {"ttft_p95": 100, "itl_p95": tunables.max_prefill_chunk / 1.5}, sight=QUIET)
    held = flight.tunables
    flight.go(340, lambda _: {"ttft_p95": 100, "itl_p95": 20}, sight=QUIET)
    assert flight.tunables != held
    flight.go(70, lambda tunables: {"ttft_p95": 100, "itl_p95": tunables.max_prefill_chunk / 1.5}, sight=QUIET)
    assert flight.verdicts[-1] == "undone"
    assert flight.tunables == held


def test_where_no_lever_is_left_it_says_so() -> None:
    terms = msgspec.structs.replace(TERMS, levers=(Lever("max_running", 4, 32),))
    flight = Flight(terms)
    flight.go(600, lambda _: {"ttft_p95": 3000, "itl_p95": 50})
    assert flight.moves == []
    assert flight.memory.says.endswith("and no lever is left that may help")


@given(
    course=st.lists(
        st.tuples(
            st.floats(10, 50_000), st.floats(1, 5000), st.integers(0, 200), st.integers(0, 64), st.integers(0, 50)
        ),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=60)
def test_whatever_is_measured_every_value_stays_within_its_bounds(
    course: list[tuple[float, float, int, int, int]],
) -> None:
    terms = msgspec.structs.replace(
        TERMS, levers=(*TERMS.levers, Lever("prefill_share", 0.2, 0.8), Lever("max_queue_requests", 50, 400))
    )
    flight = Flight(terms)
    for ttft, itl, samples, running, waiting in course:
        sight = Sight(num_waiting=waiting, num_running=running, kv_used_ratio=0.5)
        flight.go(130, lambda _, t=ttft, i=itl: {"ttft_p95": t, "itl_p95": i}, sight=sight, samples=samples)  # type: ignore[misc]
        for field, _, value in flight.moves:
            lever = terms.lever(field)
            assert lever is not None
            assert lever.low <= value <= lever.high or value == getattr(Tunables(), field)
    untouched = set(Tunables().as_dict()) - {lever.field for lever in terms.levers}
    assert all(getattr(flight.tunables, name) == getattr(Tunables(), name) for name in untouched)


@given(
    field=st.sampled_from(sorted(LEVERS)),
    share=st.floats(0, 1),
    direction=st.sampled_from([-1, 1]),
)
def test_a_step_goes_the_right_way_and_no_further_than_its_bounds(field: str, share: float, direction: Any) -> None:
    spec = next(spec for spec in describe() if spec.name == field)
    assert spec.low is not None
    assert spec.high is not None
    low, high = spec.low, min(spec.high, 10_000)
    value = low + share * (high - low)
    value = int(value) if spec.kind == "integer" else value
    after = moved(field, value, direction, low=low, high=high)
    if after is not None:
        assert (after - value) * direction > 0
        assert low <= after <= high


def test_every_remedy_names_a_lever_that_there_is() -> None:
    names = {spec.name for spec in describe() if spec.kind in ("integer", "number")}
    assert set(LEVERS) <= names
    assert {remedy.field for remedies in REMEDIES.values() for remedy in remedies} == set(LEVERS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objectives": []}, ["objectives", "at least one of"]),
        ({"objectives": [{"metric": "luck", "bound_ms": 5}]}, ["luck", "ttft_p95"]),
        ({"objectives": [{"metric": "error_ratio", "bound_ms": 5}]}, ["error_ratio", "ttft_p95"]),
        ({"objectives": [{"metric": "ttft_p95", "bound_ms": 0}]}, ["objectives.ttft_p95", "0", "from 1"]),
        ({"objectives": [{"metric": "ttft_p95", "bound_ms": 5}] * 2}, ["each name once"]),
        ({"levers": [{"field": "mode", "low": 0, "high": 1}]}, ["mode", "max_running"]),
        ({"levers": [{"field": "max_running", "low": 8, "high": 8}]}, ["levers.max_running.low", "below its high, 8"]),
        ({"levers": [{"field": "max_running", "low": 0, "high": 8}]}, ["levers.max_running.low", "0", "from 1"]),
        ({"levers": [{"field": "max_running", "low": 1.5, "high": 8}]}, ["max_running", "1.5", "an integer"]),
        ({"judged_seconds": 30}, ["judged_seconds", "at least 60"]),
        ({"slack_ratio": 1.5}, ["slack_ratio", "1.5", "0.95"]),
        ({"luck": 1}, ["terms", "luck"]),
    ],
)
def test_terms_that_nobody_can_keep_are_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    content = msgspec.to_builtins(TERMS) | changes
    with pytest.raises(InvalidValue) as caught:
        decode_terms(content)
    assert all(word in caught.value.message for word in words), caught.value.message
