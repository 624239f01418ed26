"""Stop strings against their plain definition: the text before the first one that is complete."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.text.stop_strings import StopStrings


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: look at ever longer beginnings of the text until one ends with a stop string."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


def stream(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    stop_strings = StopStrings(stops)
    results = [stop_strings.push(piece) for piece in pieces]
    return [given for given, _ in results] + [stop_strings.finish()], any(stopped for _, stopped in results)


few_letters = st.text(alphabet="aab🌶", max_size=24)


@given(
    text=few_letters,
    stops=st.lists(st.text(alphabet="aab🌶", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 24), max_size=6),
)
def test_any_split_gives_what_the_definition_gives(text: str, stops: list[str], cuts: list[int]) -> None:
    pieces = [text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])]
    given_pieces, stopped = stream(pieces, stops)
    assert ("".join(given_pieces), stopped) == cut("".join(pieces), stops)


@given(text=few_letters, stops=st.lists(st.text(alphabet="aab🌶", min_size=1, max_size=5), min_size=1, max_size=4))
def test_holds_back_only_what_may_still_become_a_stop_string(text: str, stops: list[str]) -> None:
    stop_strings = StopStrings(stops)
    seen = given_text = ""
    for character in text:
        piece, stopped = stop_strings.push(character)
        if stopped:
            return
        seen, given_text = seen + character, given_text + piece
        held = seen[len(given_text) :]
        longest = max(n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n]))
        assert len(held) == longest


def test_stop_string_across_tokens_never_shows_its_beginning() -> None:
    pieces, stopped = stream(["Thought ok\nOb", "serv", "ation:", " x"], ["Observation:"])
    assert stopped
    assert pieces == ["Thought ok\n", "", "", "", ""]


def test_held_text_is_given_when_the_model_ends_by_itself() -> None:
    pieces, stopped = stream(["UNO DUE ", "TRE"], ["TRE\nZZZZ"])
    assert not stopped
    assert pieces == ["UNO DUE ", "", "TRE"]


def test_nothing_after_the_match_is_given_even_at_the_end() -> None:
    pieces, stopped = stream(["one, ", "five", ", six,"], ["five"])
    assert stopped
    assert "".join(pieces) == "one, "


def test_false_start_is_given_as_soon_as_it_cannot_match() -> None:
    pieces, _ = stream(["Obser", "ve"], ["Observation:"])
    assert pieces == ["", "Observe", ""]


@pytest.mark.parametrize("pieces", [["xabz"], ["x", "ab", "z"], ["xa", "bz"]])
def test_first_complete_stop_string_wins_however_the_text_arrives(pieces: list[str]) -> None:
    given_pieces, stopped = stream(pieces, ["xabz", "ab"])
    assert stopped
    assert "".join(given_pieces) == "x"


def test_longest_of_two_complete_at_once_wins() -> None:
    assert StopStrings(["d", "end"]).push("the end") == ("the ", True)


def test_without_stop_strings_all_text_passes() -> None:
    assert stream(["a", "b"], []) == (["a", "b", ""], False)


def test_refuses_an_empty_stop_string() -> None:
    with pytest.raises(AssertionError):
        StopStrings([""])
