"""Guesses are kept as far as they are what is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.speculation.acceptance import count_kept


@pytest.mark.parametrize(
    ("drafts", "chosen", "kept"),
    [
        ([], [4], 1),
        ([], [None], 0),
        ([5, 6], [5, 6, 7], 3),
        ([5, 6], [5, 9, 7], 2),
        ([5, 6], [9, 6, 7], 1),
        ([5, 6], [None, 6, 7], 0),
        ([5, 6], [5, None, 7], 1),
        ([5, 6], [5, 6, None], 2),
        ([5, 6], [9, None, None], 1),
    ],
)
def test_keeps_what_is_chosen_up_to_the_first_that_was_not_guessed(
    drafts: list[int], chosen: list[int | None], kept: int
) -> None:
    assert count_kept(drafts, chosen) == kept


@given(
    drafts=st.lists(st.integers(0, 3), max_size=16),
    modulus=st.integers(1, 4),
    context=st.lists(st.integers(0, 3), min_size=1, max_size=5),
)
def test_what_is_kept_is_what_one_after_another_would_be(drafts: list[int], modulus: int, context: list[int]) -> None:
    """The next token is a function of all before it: here, of their sum."""
    chosen = [sum([*context, *drafts[:place]]) % modulus for place in range(len(drafts) + 1)]
    kept = chosen[: count_kept(drafts, chosen)]
    alone: list[int] = []
    for _ in kept:
        alone.append(sum([*context, *alone]) % modulus)
    assert kept == alone
