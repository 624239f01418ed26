"""Plans that a device computes, and whether the next one can be made before their results are there."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping

from serving.engine.plan import PlannedChunk, StepPlan
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence, SequenceStatus

MOST_IN_FLIGHT = 2
"""The plan that a device computes, and the one that it finds when it is done."""

Awaited = Mapping[Sequence, int]
"""Sequences that go on after the token that the plan in flight chooses, unless it turns out to end them; each with the
number of its chunk there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flight:
    """A plan in flight, planned at that second, and its chunks' sequences in the plan's order."""

    plan: StepPlan
    sequences: list[Sequence]
    planned_at: float


class Flights:
    """Owns which plans are in flight, the oldest first; used by the engine's thread only.

    A plan is made behind another one, whose tokens nobody knows, as if they were there: which sequences they belong to,
    and at which positions, is known from counts. A sequence that turns out to have ended with one of them has computed
    its row behind it in vain: the row is thrown away. What that row writes late does no harm. Plans run in the order in
    which they were launched, and the row writes behind all that was computed and taken in, so to no block that another
    shares or could find; whoever is given its block meanwhile writes to it in a later plan, and reads what it wrote.

    Nobody is preempted while a plan is in flight: who could end with it may leave enough.
    """

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._landed_at = 0.0

    def __len__(self) -> int:
        return len(self._flights)

    def take_off(self, plan: StepPlan, sequences: list[Sequence], now: float) -> None:
        """Note that `plan` was made at `now` and begins its way."""
        assert len(self._flights) < MOST_IN_FLIGHT, "a plan was made behind two that have no result yet"
        self._flights.append(Flight(plan, sequences, now))

    def land(self, plan: StepPlan, now: float) -> tuple[list[Sequence], float]:
        """Take out the oldest, which is `plan`, whose result came at `now`: its sequences, and since when it had the
        device for itself. A plan that was made behind another had it from that one's end on."""
        assert self._flights, "no plan is in flight"
        flight = self._flights.popleft()
        assert flight.plan is plan, "this plan is not the oldest in flight"
        began, self._landed_at = max(flight.planned_at, self._landed_at), now
        return flight.sequences, began

    def may_be_followed(self) -> bool:
        """Whether a plan can be made behind the one in flight without its result.

        Not where a sequence's next row depends on what that result makes of the host's books: see `_binds`. The whole
        step waits then, not these rows alone. Left out, they would run in every second step, at down to half the speed
        that they have without look-ahead; waited for, everyone runs as fast as without it. Where the host's part of a
        step is small, waiting costs the others little, and where it is as long as the device's, leaving out gains the
        bound ones nothing: so nobody is ever slower for the look-ahead, and mixed loads lose a part of what it gains.
        """
        assert len(self._flights) == 1, "look ahead goes behind one plan"
        flight = self._flights[0]
        for sequence, chunk in zip(flight.sequences, flight.plan.chunks, strict=True):
            # In this order, since most are neither, and all are asked in every step.
            if (sequence.is_bound_to_host or chunk.draft_ids) and _binds(sequence, chunk):
                return False
        return True

    def awaited(self) -> Awaited:
        """Who still runs of those for whom the plan in flight chooses a token, which is not bound to be the last."""
        flight, running = self._flights[0], SequenceStatus.RUNNING
        chunks = flight.plan.chunks
        return {
            sequence: index
            for index, sequence in enumerate(flight.sequences)
            if sequence.status is running
            and chunks[index].samples
            and len(sequence.token_ids) - sequence.num_prompt_tokens + 1 < sequence.params.max_tokens
        }

    def check_invariants(self, roster: Roster) -> None:
        """Raise AssertionError where a plan in flight could harm what others read, or is miscounted. For tests."""
        planned: dict[Sequence, int] = {}
        for flight in self._flights:
            for sequence, chunk in zip(flight.sequences, flight.plan.chunks, strict=True):
                end = chunk.end + len(chunk.draft_ids)
                assert len(chunk.block_table) * roster.block_size >= end, "a row has no block to write to"
                blocks = chunk.block_table[chunk.start // roster.block_size : -(-end // roster.block_size)]
                assert not any(map(roster.prefix_cache.knows, blocks)), "a block can be found that is still written to"
                if sequence.status is not SequenceStatus.RUNNING:
                    continue
                holders = [roster.pool.num_holders(block) for block in blocks]
                assert holders == [1] * len(blocks), "a block is shared that is still written to"
                begin = planned.get(sequence, sequence.num_computed_tokens)
                assert chunk.start == begin, f"{sequence.key}: a plan in flight leaves positions out, or repeats them"
                planned[sequence] = chunk.end
        for sequence in roster.running:
            expected = planned.get(sequence, sequence.num_computed_tokens)
            assert sequence.num_planned_tokens == expected, f"{sequence.key}: what is in flight is miscounted"


def _binds(sequence: Sequence, chunk: PlannedChunk) -> bool:
    """Whether what `sequence` computes next depends on more of the chunk's result than a token that the device knows.

    So with a grammar or penalties, whose masks and counts the host makes of the text; for an embedding that goes on,
    whose sum the host keeps; and with drafts, of which nobody knows how many are kept.
    """
    if sequence.status is not SequenceStatus.RUNNING:
        return False
    if chunk.embeds:
        return not chunk.ends_embedding
    is_last = sequence.num_generated + 1 >= sequence.params.max_tokens
    return chunk.samples and not is_last
