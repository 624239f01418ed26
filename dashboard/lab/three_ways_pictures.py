"""Batches as pictures, slot by slot and step by step: of an engine's own steps, or of an example. Pure functions."""

from __future__ import annotations

import dataclasses
from typing import Final

from serving.contracts.steps import DECODE, PREFILL
from serving.lab.experiments.pictures import HELD, Picture, Stretch
from serving.lab.experiments.three_ways_plan import WayName

CELL_WIDTH: Final = 8
CELL_HEIGHT: Final = 12
_GAP: Final = 1
_KINDS: Final = {PREFILL: "prefill", DECODE: "decode", HELD: "held"}

_PLACES: Final = 4
_EXAMPLE: Final = ((0, 1, 9), (0, 2, 4), (1, 1, 14), (2, 1, 3), (5, 2, 6), (7, 1, 9), (8, 1, 4), (13, 1, 7), (15, 2, 5))
"""Requests of an example: the step in which each comes, its prompt's steps and its answer's."""
_EXAMPLE_WINDOW: Final = 4
_EXAMPLE_STEPS: Final = 36


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One stretch of a sequence in the picture's own units. `shade` tells neighbours apart."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    shade: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture that a page draws. `words` say it for who does not see it."""

    width: int
    height: int
    cells: tuple[Cell, ...]
    words: str
    note: str


def draw(picture: Picture, *, note: str) -> Drawing:
    """A picture as rectangles."""
    cells = [
        Cell(
            x=stretch.first * CELL_WIDTH,
            y=place * CELL_HEIGHT,
            width=(stretch.last - stretch.first + 1) * CELL_WIDTH - _GAP,
            height=CELL_HEIGHT - _GAP,
            kind=_KINDS[stretch.kind],
            shade="odd" if stretch.sequence % 2 else "even",
        )
        for place, slot in enumerate(picture.slots)
        for stretch in slot
    ]
    num_sequences = len({stretch.sequence for slot in picture.slots for stretch in slot})
    return Drawing(
        width=picture.num_steps * CELL_WIDTH,
        height=max(1, len(picture.slots)) * CELL_HEIGHT,
        cells=tuple(cells),
        words=(
            f"{len(picture.slots)} places over {picture.num_steps} steps, {num_sequences} sequences, "
            f"{picture.empty_share:.0%} of the places empty"
        ),
        note=note,
    )


def example_of(way: WayName) -> Picture:
    """How nine requests share four places, step by step, under one way of batching."""
    waiting = list(range(len(_EXAMPLE)))
    places: list[list[Stretch]] = [[] for _ in range(_PLACES)]
    free_from = [0] * _PLACES
    for step in range(_EXAMPLE_STEPS):
        come = [number for number in waiting if _EXAMPLE[number][0] <= step]
        free = [place for place in range(_PLACES) if free_from[place] <= step]
        if not come or not free or not _may_join(way, step, come=come, num_free=len(free)):
            continue
        for number, place in zip(come, free, strict=False):
            waiting.remove(number)
            free_from[place] = _fill(places[place], number + 1, step)
    last = max(free_from)
    return Picture(
        first_step=1,
        num_steps=last,
        slots=tuple(tuple(place) for place in places),
        num_waiting=(0,) * last,
        milliseconds=(0.0,) * last,
    )


def _may_join(way: WayName, step: int, *, come: list[int], num_free: int) -> bool:
    has_waited = step - _EXAMPLE[come[0]][0] >= _EXAMPLE_WINDOW
    if way == "static":
        return num_free == _PLACES and (has_waited or len(come) >= _PLACES)
    return way == "continuous" or has_waited or len(come) >= num_free


def _fill(place: list[Stretch], number: int, step: int) -> int:
    """Put a request into a place from that step on; the first step after it."""
    _, num_prefill, num_decode = _EXAMPLE[number - 1]
    place.append(Stretch(number, step, step + num_prefill - 1, PREFILL))
    place.append(Stretch(number, step + num_prefill, step + num_prefill + num_decode - 1, DECODE))
    return step + num_prefill + num_decode
