"""How many frames a page may owe."""

from __future__ import annotations

from dashboard.pacing import Pacing


def pacing(*, max_unacked: int = 3, slow_seconds: float = 10) -> Pacing:
    return Pacing(max_unacked=max_unacked, slow_seconds=slow_seconds)


def test_no_more_is_sent_than_may_be_owed() -> None:
    paced = pacing()
    assert [paced.take_place(sequence, 0) for sequence in range(5)] == [True, True, True, False, False]
    assert (paced.num_owed, paced.num_skipped) == (3, 2)


def test_one_acknowledgement_covers_what_was_sent_before_it() -> None:
    paced = pacing()
    for sequence in (4, 5, 6):
        paced.take_place(sequence, 0)
    paced.acknowledge(5, 1)
    assert paced.num_owed == 1
    assert paced.take_place(9, 1)


def test_acknowledging_what_is_not_owed_changes_nothing() -> None:
    paced = pacing(max_unacked=1)
    paced.take_place(4, 0)
    for sequence in (3, 5, 2**53):
        paced.acknowledge(sequence, 9)
    assert not paced.take_place(5, 9)
    assert paced.is_too_slow(10)


def test_numbers_that_begin_anew_are_owed_like_others() -> None:
    paced = pacing(max_unacked=2)
    paced.take_place(900, 0)
    paced.take_place(1, 0)
    paced.acknowledge(1, 1)
    assert paced.num_owed == 0


def test_slow_is_who_owes_for_long_and_gives_nothing() -> None:
    paced = pacing()
    assert not paced.is_too_slow(1e9)
    paced.take_place(1, 100)
    paced.take_place(2, 105)
    assert not paced.is_too_slow(109)
    assert paced.is_too_slow(110)
    paced.acknowledge(1, 110)
    assert not paced.is_too_slow(119)
    assert paced.is_too_slow(120)
    paced.acknowledge(2, 120)
    assert not paced.is_too_slow(1e9)
    paced.take_place(3, 1e9)
    assert not paced.is_too_slow(1e9 + 9)
