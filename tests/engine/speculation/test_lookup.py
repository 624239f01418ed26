"""What the end of a context said before is found, and what followed it copied."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from serving.engine.speculation.lookup import LONGEST_MATCH, PromptLookup

_CONTEXTS = st.lists(st.integers(0, 3), max_size=60)


def read(context: list[int]) -> PromptLookup:
    lookup = PromptLookup(context)
    lookup.read_on(len(context))
    return lookup


def agreement(context: list[int], place: int) -> int:
    """How many tokens before `place` are those at the context's end."""
    length = 0
    while length < min(place, LONGEST_MATCH) and context[place - 1 - length] == context[len(context) - 1 - length]:
        length += 1
    return length


def candidates(context: list[int]) -> list[int]:
    """Positions behind the latest 16 places with the last pair, the latest first."""
    places = [place for place in range(len(context) - 1, 1, -1) if agreement(context, place) >= 2]
    return places[:16]


@given(context=_CONTEXTS)
def test_finds_the_longest_agreement_and_of_equals_the_latest(context: list[int]) -> None:
    places = candidates(context)
    found = read(context).find()
    if not places:
        assert found is None
        return
    longest = max(agreement(context, place) for place in places)
    assert found == (next(place for place in places if agreement(context, place) == longest), longest)


@given(context=_CONTEXTS, more=_CONTEXTS, parts=st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_what_is_read_in_parts_while_the_context_grows_is_what_is_read_at_once(
    context: list[int], more: list[int], parts: list[int]
) -> None:
    growing = list(context)
    lookup = PromptLookup(growing)
    for part in parts:
        lookup.read_on(part)
        growing.extend(more[:part])
        del more[:part]
    lookup.read_on(lookup.num_unread)
    assert lookup.num_unread == 0
    assert lookup.find() == read(growing).find()


def test_copies_what_followed() -> None:
    lookup = read([5, 6, 7, 8, 9, 1, 5, 6])
    assert lookup.find() == (2, 2)
    assert lookup.copy(2, 4) == [7, 8, 9, 1]


def test_behind_the_end_the_copy_repeats_itself() -> None:
    context = [1, 2, 3, 1, 2, 3, 1, 2]
    lookup = read(context)
    place, agreeing = lookup.find() or (0, 0)
    assert (place, agreeing) == (5, 5)
    assert lookup.copy(place, 8) == [3, 1, 2, 3, 1, 2, 3, 1]


def test_one_token_over_and_over_goes_on_so() -> None:
    lookup = read([4, 4, 4])
    assert lookup.find() == (2, 2)
    assert lookup.copy(2, 3) == [4, 4, 4]


def test_of_a_long_context_only_the_end_is_read() -> None:
    rng = random.Random(1)
    context = [7, 8, 9, *(rng.randrange(100, 40_000) for _ in range(40_000)), 7, 8]
    lookup = PromptLookup(context)
    assert lookup.num_unread == 32_768
    lookup.read_on(lookup.num_unread)
    assert lookup.find() is None
    context += [5, 7, 8]
    lookup.read_on(lookup.num_unread)
    assert lookup.find() == (len(context) - 3, 2)
