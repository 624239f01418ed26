"""What a context says next where it said the same before: guesses without a model."""

from __future__ import annotations

import array
from collections.abc import Sequence as Seq

_SHORTEST = 2
LONGEST_MATCH = 8
"""Tokens that are compared at most: of places that agree for longer than that, the latest is taken."""
_MOST_CANDIDATES = 16
_MOST_READ = 32_768
"""Of a context that is longer when it is first looked at, so many of its last tokens are read."""


class PromptLookup:
    """Owns where each pair of neighbouring tokens of one context stands; used by the engine's thread only.

    Prompt look-up decoding (Saxena 2023): the last tokens of a context are looked for earlier in it, and what followed
    there is guessed to follow again. Places with the same pair form a chain from the latest to the first, as in the
    hash chains of LZ77 compressors (Ziv and Lempel 1977; RFC 1951, section 4), so that a token costs one entry when it
    is read and a look-up follows few links. Memory: eight bytes a token and an entry a distinct pair.
    """

    __slots__ = ("_first", "_latest", "_previous", "context")

    def __init__(self, context: Seq[int]) -> None:
        """Reads nothing yet. `context` may grow, and is never changed otherwise."""
        # Held, and so no other list can take its place under the same identity.
        self.context = context
        self._first = max(0, len(context) - _MOST_READ)
        self._latest: dict[int, int] = {}
        self._previous = array.array("q")
        """Of each position from `_first` on: where the pair that ends there ended before, or -1."""

    @property
    def num_unread(self) -> int:
        """Tokens at the end that are not known yet."""
        return len(self.context) - self._first - len(self._previous)

    def read_on(self, most: int) -> None:
        """Take in the next tokens, `most` of them or all."""
        context, previous, latest = self.context, self._previous, self._latest
        begin = self._first + len(previous)
        end = min(len(context), begin + most)
        if begin == self._first and begin < end:
            previous.append(-1)
            begin += 1
        pairs = zip(context[begin - 1 : end - 1], context[begin:end], strict=True)
        for position, (one, next_one) in enumerate(pairs, begin):
            pair = one << 32 | next_one
            previous.append(latest.get(pair, -1))
            latest[pair] = position

    def find(self) -> tuple[int, int] | None:
        """Where the context's end was seen before: the position after it, and how many tokens agree (2 to
        `LONGEST_MATCH`). Of the latest 16 places that share the last pair, the one that agrees for longest, the latest
        of equals; None where there is none. Everything must be read.
        """
        assert self.num_unread == 0, "a look-up before everything was read"
        if len(self._previous) < _SHORTEST:
            return None
        context, previous, first = self.context, self._previous, self._first
        last = len(context) - 1
        place = previous[-1]
        best, longest = -1, 0
        for _ in range(_MOST_CANDIDATES):
            if place < 0:
                break
            length = _SHORTEST
            while length < LONGEST_MATCH and place - length >= first:
                if context[place - length] != context[last - length]:
                    break
                length += 1
            if length > longest:
                best, longest = place, length
                if length == LONGEST_MATCH:
                    break
            place = previous[place - first]
        return (best + 1, longest) if longest else None

    def copy(self, place: int, count: int) -> list[int]:
        """`count` tokens from position `place` on; behind the context's end it repeats itself."""
        context, length = self.context, len(self.context)
        copied = list(context[place : place + count])
        while len(copied) < count:
            copied.append(copied[place + len(copied) - length])
        return copied
