"""In which order sequences are served, and who gives way when memory is short."""

from __future__ import annotations

from typing import Protocol

from serving.engine.sequence import Rank, Sequence


class Order(Protocol):
    """Ranks sequences. The waiting are taken from the smallest rank up; the largest rank is preempted first."""

    def rank(self, sequence: Sequence) -> Rank:
        """The sequence's rank, asked once when it arrives. An order that weighs service stamps it then."""
        ...


class FirstComeFirstServed:
    """By arrival; of those that arrived at once, as they were added."""

    def rank(self, sequence: Sequence) -> Rank:
        """Arrival, then serial number."""
        return (sequence.arrival, float(sequence.serial))
