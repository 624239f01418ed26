"""A batch over time, slot by slot and step by step, from an engine's own rows. Pure functions."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import msgspec

from serving.contracts.messages import SequenceKey
from serving.contracts.steps import DECODE, PREEMPTED, StepBatch, StepRow

WIDEST: Final = 120
"""Steps that a picture shows, at most."""
MOST_SLOTS: Final = 24
HELD: Final = 3
"""A slot whose sequence computed nothing in a step, though it has its place."""


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """One sequence in one slot, from step `first` to step `last` of the picture, both included, doing one thing:
    `PREFILL`, `DECODE` or `HELD`. Sequences are numbered in the order in which they joined."""

    sequence: int
    first: int
    last: int
    kind: int


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """`num_steps` steps of one engine. `slots` are the batch's places, the lowest filled first; where a slot has no
    stretch, it is empty. `num_waiting` and `milliseconds` are each step's; `num_hidden_slots` are left out."""

    first_step: int
    num_steps: int
    slots: tuple[tuple[Stretch, ...], ...]
    num_waiting: tuple[int, ...]
    milliseconds: tuple[float, ...]
    num_hidden_slots: int = 0

    @property
    def empty_share(self) -> float:
        """Which share of all slots, over all steps, is empty."""
        total = len(self.slots) * self.num_steps
        filled = sum(stretch.last - stretch.first + 1 for slot in self.slots for stretch in slot)
        return 1 - filled / total if total else 0.0


class _Member(msgspec.Struct):
    """A sequence, the steps that it was in, and what it did there, by index of the row."""

    number: int
    did: dict[int, int]
    slot: int = -1


def picture_of(batches: Sequence[StepBatch], *, widest: int = WIDEST) -> Picture | None:
    """The stretch of the first engine's steps in which most sequences join and leave, the first of several; None where
    there are no steps."""
    rows = _rows_of(batches)
    if not rows:
        return None
    members = _members_of(rows)
    _give_slots(members)
    begin = _busiest(members, num_rows=len(rows), width=min(widest, len(rows)))
    end = min(len(rows), begin + widest)
    slots = _slots_of(members, begin, end)
    shown = [row for row, _ in rows[begin:end]]
    return Picture(
        first_step=shown[0].step,
        num_steps=end - begin,
        slots=slots[:MOST_SLOTS],
        num_waiting=tuple(row.num_waiting for row in shown),
        milliseconds=tuple(round(row.total_ms, 2) for row in shown),
        num_hidden_slots=max(0, len(slots) - MOST_SLOTS),
    )


def _rows_of(batches: Sequence[StepBatch]) -> list[tuple[StepRow, list[SequenceKey]]]:
    """One engine's steps after the last hole among them."""
    rows: list[tuple[StepRow, list[SequenceKey]]] = []
    for batch in batches:
        if batch.engine_id != batches[0].engine_id:
            break
        for row in batch.rows:
            if rows and row.step != rows[-1][0].step + 1:
                rows.clear()
            rows.append((row, batch.sequences))
    return rows


def _members_of(rows: Sequence[tuple[StepRow, list[SequenceKey]]]) -> list[_Member]:
    members: dict[SequenceKey, _Member] = {}
    for index, (row, sequences) in enumerate(rows):
        did = dict.fromkeys(row.decoding, DECODE)
        kinds = zip(row.others[::3], row.others[1::3], strict=True)
        did |= {place: kind for place, kind in kinds if kind != PREEMPTED}
        for place, kind in did.items():
            key = sequences[place]
            member = members.setdefault(key, _Member(len(members) + 1, {}))
            member.did[index] = kind
    return list(members.values())


def _give_slots(members: Sequence[_Member]) -> None:
    """The lowest free slot to each, in the order in which they join."""
    free: list[int] = []
    leaving: list[tuple[int, int]] = []
    num_slots = 0
    for member in sorted(members, key=lambda member: min(member.did)):
        while leaving and leaving[0][0] < min(member.did):
            heapq.heappush(free, heapq.heappop(leaving)[1])
        if free:
            member.slot = heapq.heappop(free)
        else:
            member.slot, num_slots = num_slots, num_slots + 1
        heapq.heappush(leaving, (max(member.did), member.slot))


def _busiest(members: Sequence[_Member], *, num_rows: int, width: int) -> int:
    """The index at which the busiest window begins. What was there from the first row on did not join then."""
    changes = [0] * num_rows
    for member in members:
        for index in (min(member.did), max(member.did)):
            if 0 < index < num_rows - 1:
                changes[index] += 1
    count = best = sum(changes[:width])
    begin = 0
    for index in range(1, num_rows - width + 1):
        count += changes[index + width - 1] - changes[index - 1]
        if count > best:
            best, begin = count, index
    return begin


def _slots_of(members: Sequence[_Member], begin: int, end: int) -> tuple[tuple[Stretch, ...], ...]:
    slots: dict[int, list[Stretch]] = {}
    shown = [member for member in members if max(member.did) >= begin and min(member.did) < end]
    for member in sorted(shown, key=lambda member: min(member.did)):
        slots.setdefault(member.slot, []).extend(_stretches_of(member, begin, end))
    return tuple(tuple(slots.get(number, ())) for number in range(max(slots, default=-1) + 1))


def _stretches_of(member: _Member, begin: int, end: int) -> list[Stretch]:
    stretches: list[Stretch] = []
    for index in range(max(begin, min(member.did)), min(end - 1, max(member.did)) + 1):
        kind, place = member.did.get(index, HELD), index - begin
        if stretches and stretches[-1].kind == kind:
            stretches[-1] = Stretch(member.number, stretches[-1].first, place, kind)
        else:
            stretches.append(Stretch(member.number, place, place, kind))
    return stretches
