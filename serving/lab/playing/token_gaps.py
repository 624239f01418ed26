"""The time between two tokens, told from when pieces of an answer came. Pure functions.

A piece may hold several tokens. They count as evenly spread over the wait for it: else a server that sends two at a
time would seem to be half as fast as one that sends the same tokens one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Gap(msgspec.Struct, frozen=True):
    """So many gaps in a row, each of so many seconds; the last ended at moment `at`."""

    at: float
    seconds: float
    count: int


def gap_before(arrivals: Sequence[float], place: int, *, num_tokens: int) -> Gap:
    """The gaps of the tokens that came with the arrival at `place`, from the second on."""
    assert place > 0, "a gap lies between two arrivals"
    return Gap(arrivals[place], (arrivals[place] - arrivals[place - 1]) / num_tokens, num_tokens)


def shared_out(told: Sequence[int | None], *, num_tokens: int) -> list[int]:
    """How many tokens came with each arrival, at least 1: as was told, and where nothing was (None), the rest of
    `num_tokens` in shares that are as even as they can be. A first piece of which nothing is told has one token: the
    prompt's step gives one."""
    counts = [0 if count is None else count for count in told]
    unknown = [place for place, count in enumerate(told) if count is None]
    if unknown and unknown[0] == 0:
        counts[0] = 1
        unknown = unknown[1:]
    rest = max(len(unknown), num_tokens - sum(counts))
    for number, place in enumerate(unknown):
        counts[place] = (number + 1) * rest // len(unknown) - number * rest // len(unknown)
    return counts
