"""Guesses are made while they pay, as rows and what was kept of the last ones tell."""

from __future__ import annotations

import random

import pytest

from serving.engine.speculation.worth import RowCost, Trust, Worth


def measured(*, base: float, slope: float, rows: list[int], num_steps: int = 300, noise: float = 0.0) -> RowCost:
    """What is known after steps with the numbers of `rows` in turn."""
    rng = random.Random(1)
    cost = RowCost()
    for step in range(num_steps):
        num_rows = rows[step % len(rows)]
        cost.note(num_rows=num_rows, seconds=(base + slope * num_rows) * (1 + noise * rng.uniform(-1, 1)))
    return cost


# --- what a row costs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "slope"), [(0.01, 0.0), (0.01, 0.0005), (0.0, 0.001), (0.002, 0.004)])
def test_finds_what_a_row_costs(base: float, slope: float) -> None:
    cost = measured(base=base, slope=slope, rows=[8, 8, 14, 8, 30])
    assert cost.slope == pytest.approx(slope, rel=0.02, abs=1e-9)
    assert cost.seconds_of(8) == pytest.approx(base + slope * 8, rel=0.02)
    assert cost.price_of_draft(8) == pytest.approx(8 * slope / (base + 8 * slope), rel=0.03, abs=1e-6)


def test_finds_it_in_noise() -> None:
    cost = measured(base=0.01, slope=0.0005, rows=[4, 4, 9, 12, 4], noise=0.2)
    assert cost.slope == pytest.approx(0.0005, rel=0.25)


def test_nothing_costs_anything_before_a_step_was_measured_nor_on_a_clock_that_stands() -> None:
    assert RowCost().price_of_draft(3) == 0.0
    assert measured(base=0.0, slope=0.0, rows=[1, 4]).price_of_draft(1) == 0.0


def test_a_row_costs_no_less_than_nothing_and_no_more_than_the_mean_row() -> None:
    assert measured(base=0.05, slope=-0.001, rows=[1, 20]).slope == 0.0
    steep = measured(base=-0.01, slope=0.01, rows=[4, 20])
    assert steep.slope == pytest.approx((-0.01 + 0.01 * 12) / 12, rel=0.05)
    assert steep.price_of_draft(12) <= 1.0


def test_follows_a_load_that_changes() -> None:
    cost = measured(base=0.01, slope=0.001, rows=[2, 6])
    for step in range(400):
        num_rows = (64, 90)[step % 2]
        cost.note(num_rows=num_rows, seconds=0.02 + 0.0002 * num_rows)
    assert cost.slope == pytest.approx(0.0002, rel=0.2)


def test_a_step_that_something_else_held_up_says_nothing() -> None:
    cost = measured(base=0.01, slope=0.0005, rows=[4, 10])
    before = cost.slope
    cost.note(num_rows=10, seconds=3.0)
    assert cost.slope == pytest.approx(before, rel=0.01)


def test_a_pace_that_stays_slow_is_believed() -> None:
    cost = measured(base=0.01, slope=0.0, rows=[4])
    for _ in range(1000):
        cost.note(num_rows=4, seconds=0.2)
    assert cost.seconds_of(4) == pytest.approx(0.2, rel=0.05)


def test_what_was_too_dear_is_tried_again_when_nothing_was_seen_of_it_for_long() -> None:
    cost = measured(base=0.001, slope=0.001, rows=[8, 20])
    assert cost.price_of_draft(8) > 0.8
    num_steps = 0
    while cost.price_of_draft(8) > 0.5:
        cost.note(num_rows=8, seconds=0.009)
        num_steps += 1
        assert num_steps < 1500
    assert num_steps > 100


# --- how many guesses pay -------------------------------------------------------------------------------------------


def taught(*, num_drafts: int, num_kept: int, times: int = 200, num_agreeing: int = 4) -> tuple[Worth, Trust]:
    worth, trust = Worth(), Trust()
    for _ in range(times):
        worth.note_kept(trust, num_agreeing=num_agreeing, num_drafts=num_drafts, num_kept=num_kept)
    return worth, trust


def num_drafts(worth: Worth, trust: Trust, price: float, *, num_agreeing: int = 4, most: int = 16) -> int:
    return worth.num_drafts(trust, num_agreeing=num_agreeing, price=price, most=most, num_tokens=100)


def test_learns_how_often_a_guess_is_kept() -> None:
    worth, trust = taught(num_drafts=4, num_kept=2)
    assert worth.ratio_of(trust, 4) == pytest.approx(2 / 3, abs=0.05)
    assert worth.ratio_of(Trust(), 4) == pytest.approx(2 / 3, abs=0.05), "another sequence begins with what is known"
    assert worth.ratio_of(trust, 3) == 0.5, "another agreement is another thing"


def test_a_sequence_that_is_not_like_the_others_is_known_soon() -> None:
    worth, _ = taught(num_drafts=4, num_kept=4)
    odd = Trust()
    for _ in range(5):
        worth.note_kept(odd, num_agreeing=4, num_drafts=4, num_kept=0)
    assert worth.ratio_of(odd, 4) < 0.5 < 0.9 < worth.ratio_of(Trust(), 4)


def test_guesses_further_the_better_and_the_cheaper_guesses_are() -> None:
    good, trust = taught(num_drafts=4, num_kept=4)
    poor, doubt = taught(num_drafts=4, num_kept=1)
    assert num_drafts(good, trust, 0.1) == 16
    assert num_drafts(poor, doubt, 0.1) in {2, 3}
    assert num_drafts(poor, doubt, 0.3) == 1
    assert num_drafts(good, trust, 0.1, most=3) == 3
    assert num_drafts(good, trust, 0.1, most=0) == 0


def test_guesses_nothing_where_a_row_costs_a_token() -> None:
    good, trust = taught(num_drafts=4, num_kept=4)
    assert num_drafts(good, trust, 1.0) == 0
    assert trust.quiet_until == 0, "the price is not the sequence's fault"


def test_as_many_guesses_as_make_the_most_tokens_a_second() -> None:
    """Against all numbers of guesses, with the margin that is kept: one more would lose, and one fewer would too."""
    base, slope, ratio = 0.01, 0.0008, 0.6
    cost = measured(base=base, slope=slope, rows=[1, 5, 9])
    worth, trust = Worth(), Trust()
    rng = random.Random(2)
    for _ in range(3000):
        kept = next((place for place in range(4) if rng.random() > ratio), 4)
        worth.note_kept(trust, num_agreeing=4, num_drafts=4, num_kept=kept)

    def tokens_per_second(count: int) -> float:
        expected = sum(ratio**place for place in range(count + 1))
        return expected / (base + slope * (1 + count))

    count = worth.num_drafts(Trust(), num_agreeing=4, price=cost.price_of_draft(1), most=16, num_tokens=100)
    best = max(range(17), key=tokens_per_second)
    assert tokens_per_second(count) > 0.97 * tokens_per_second(best)


def test_whoever_cannot_be_guessed_is_left_alone_for_longer_and_longer() -> None:
    worth, trust = taught(num_drafts=4, num_kept=0)
    num_tokens, pauses = 100, []
    for _ in range(8):
        assert worth.num_drafts(trust, num_agreeing=4, price=0.2, most=8, num_tokens=num_tokens) == 1
        pauses.append(trust.quiet_until - num_tokens)
        num_tokens = trust.quiet_until
        worth.note_kept(trust, num_agreeing=4, num_drafts=1, num_kept=0)
    assert pauses == [16, 32, 64, 128, 256, 512, 512, 512]
    worth.note_kept(trust, num_agreeing=4, num_drafts=1, num_kept=1)
    worth.num_drafts(trust, num_agreeing=4, price=0.2, most=8, num_tokens=num_tokens)
    assert trust.quiet_until - num_tokens == 16, "it was guessed once: the next pause is short again"
