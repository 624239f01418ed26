"""What is left out where time is short."""

from __future__ import annotations

from typing import NoReturn

from serving.engine.bench.gpu.budget import Budget, Skipped


class _Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_what_fits_is_done() -> None:
    clock = _Clock()
    budget = Budget(10, clock=clock)
    assert budget.spend("part", 10, lambda: "done") == "done"
    assert budget.skipped == []


def test_what_does_not_fit_is_left_out_and_told() -> None:
    clock = _Clock()
    budget = Budget(10, clock=clock)
    clock.now += 7
    done: list[str] = []
    assert budget.spend("large", 4, lambda: done.append("large")) is None
    budget.spend("small", 3, lambda: done.append("small"))
    assert done == ["small"]
    assert budget.skipped == [Skipped("large", "needs about 4 s, and 3 s are left")]


def test_a_part_that_fails_is_told_and_takes_no_other_with_it() -> None:
    budget = Budget(10, clock=_Clock())

    def fail() -> NoReturn:
        raise ValueError("no such thing\nand more")

    assert budget.spend("broken", 1, fail) is None
    assert budget.spend("whole", 1, lambda: 7) == 7
    assert budget.skipped == [Skipped("broken", "failed: ValueError: no such thing")]


def test_when_all_time_is_spent_nothing_is_begun() -> None:
    clock = _Clock()
    budget = Budget(10, clock=clock)
    clock.now += 12
    assert budget.left_seconds == -2
    budget.spend("late", 0, lambda: None)
    assert budget.skipped == [Skipped("late", "needs about 0 s, and 0 s are left")]
