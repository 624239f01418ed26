"""Ends a text where a stop string appears in it, and holds back no more than may still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Owns the text of one choice that may still become a stop string; called by whoever owns the choice.

    The text ends at the stop string that is complete first; of several complete at one character, at the longest. So
    the outcome does not depend on how the text was split. The stop string and what follows it are never given.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would end every text before it begins"
        self._matchers = [_Matcher(stop) for stop in stops]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """`(text to give, whether a stop string ended it)`. After the end, nothing more is given."""
        if self._stopped:
            return "", True
        if not self._held and self._first_characters.isdisjoint(text):
            return text, False
        whole = self._held + text
        for index, character in enumerate(text, start=len(self._held)):
            longest = max((matcher.advance(character) for matcher in self._matchers), default=0)
            if longest:
                self._stopped = True
                self._held = ""
                return whole[: index + 1 - longest], True
        num_held = max((matcher.matched for matcher in self._matchers), default=0)
        given = whole[: len(whole) - num_held]
        self._held = whole[len(given) :]
        return given, False

    def finish(self) -> str:
        """The text held back, when the model has ended by itself: it became no stop string after all."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Owns how many characters of one stop string the end of the text matches (Knuth, Morris and Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallback = _fallbacks(stop)
        self.matched = 0

    def advance(self, character: str) -> int:
        """Take the text's next character; the stop string's length where that completes it, 0 otherwise."""
        while self.matched and self._stop[self.matched] != character:
            self.matched = self._fallback[self.matched]
        if self._stop[self.matched] == character:
            self.matched += 1
        return len(self._stop) if self.matched == len(self._stop) else 0


def _fallbacks(stop: str) -> list[int]:
    """`result[n]`: the longest proper prefix of `stop[:n]` that is its suffix too."""
    result = [0, 0]
    for character in stop[1:]:
        length = result[-1]
        while length and stop[length] != character:
            length = result[length]
        result.append(length + 1 if stop[length] == character else 0)
    return result
