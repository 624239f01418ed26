"""In which order sequences are served, and who gives way when memory is short."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Literal, Protocol

from serving.engine.fairness import ServiceLedger
from serving.engine.sequence import Rank, Sequence

AGEING_SECONDS = 10.0
"""What one level of priority is worth in waiting: so a request overtakes those that came this much before it and are a
level less urgent, and nobody who came earlier than that."""

OrderName = Literal["fcfs", "priority", "fair"]
Line = str | None
"""What the waiting are lined up by: within a line ranks decide, and between lines their standing."""

rank_of = attrgetter("rank")


class Order(Protocol):
    """Says who is more deserving; used by the engine's thread only.

    Those that gave way too often to do so again come before all others in every order.
    """

    def rank(self, sequence: Sequence) -> Rank:
        """The sequence's place in its line; it does not change while the order does not, but for its protection."""
        ...

    def line_of(self, sequence: Sequence) -> Line:
        """The line in which it waits."""
        ...

    def standing(self, line: Line) -> float:
        """The line's place among the lines, the smaller the more deserving; rises within a step as sequences join."""
        ...

    def by_merit(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The sequences, the most deserving first. Mutates nothing."""
        ...

    def choose_decodes(self, decoding: list[Sequence], budget: int) -> list[Sequence]:
        """Those of `decoding`, sorted by rank, that a budget reaches which is too small for all; a token each."""
        ...

    def begin_waiting(self, sequence: Sequence) -> None:
        """Hear that a sequence now waits."""
        ...

    def end_waiting(self, sequence: Sequence) -> None:
        """Hear that it does not any longer."""
        ...

    def promise(self, prefilling: Iterable[Sequence]) -> None:
        """Hear of all that is in prefill, before any joins: what is still to be computed for them."""
        ...

    def admit(self, sequence: Sequence) -> None:
        """Hear that a sequence joined."""
        ...

    def charge(self, sequence: Sequence, *, num_prompt_tokens: int, num_generated: int) -> None:
        """Hear what was computed for a sequence. Asked only where `weighs_service`."""
        ...

    @property
    def weighs_service(self) -> bool:
        """Whether what is computed has a bearing on the order."""
        ...


def order_of(name: OrderName) -> Order:
    """The order of this name, which knows of no service yet."""
    return FairOrder() if name == "fair" else RankOrder(seconds_a_level=AGEING_SECONDS if name == "priority" else 0.0)


class RankOrder:
    """By arrival, a level of `Submit.priority` being worth `seconds_a_level` of waiting: 0 for first come first served.

    So waiting raises everyone, and nothing has to be sorted anew. Owns whose turn to decode is next.
    """

    weighs_service = False

    def __init__(self, *, seconds_a_level: float) -> None:
        self._seconds_a_level = seconds_a_level
        self._last_decoded: Rank = ()

    def rank(self, sequence: Sequence) -> Rank:
        """Arrival and urgency, then serial number."""
        if sequence.protection:
            return _protected_rank(sequence)
        return (1.0, sequence.arrival + sequence.priority * self._seconds_a_level, float(sequence.serial))

    def line_of(self, _sequence: Sequence) -> Line:
        """There is one line."""
        return None

    def standing(self, _line: Line) -> float:
        """There is one line."""
        return 0.0

    def by_merit(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """By rank."""
        return sorted(sequences, key=rank_of)

    def choose_decodes(self, decoding: list[Sequence], budget: int) -> list[Sequence]:
        """They take turns: those behind who was served last go first, and round again from the start."""
        chosen = _next_in_turn(decoding, self._last_decoded)[:budget]
        self._last_decoded = chosen[-1].rank
        return chosen

    def begin_waiting(self, sequence: Sequence) -> None:
        """Of no consequence."""

    def end_waiting(self, sequence: Sequence) -> None:
        """Of no consequence."""

    def promise(self, prefilling: Iterable[Sequence]) -> None:
        """Of no consequence."""

    def admit(self, sequence: Sequence) -> None:
        """Of no consequence."""

    def charge(self, sequence: Sequence, *, num_prompt_tokens: int, num_generated: int) -> None:
        """Of no consequence."""


class FairOrder:
    """The tenant that was served least goes first, and of one tenant's sequences the earliest.

    Sheng et al. 2024, "Fairness in Serving Large Language Models" (OSDI), algorithm 2. There a prompt is charged when
    it joins; here what is computed is charged when it is, and what those in prefill still want counts when others join,
    so that who gives way and whose prefill goes first is decided by service that was really given. Owns the tenants'
    service and whose turns to decode are next.
    """

    weighs_service = True

    def __init__(self) -> None:
        self._ledger = ServiceLedger()
        self._promised: dict[str, float] = {}
        self._last_decoded: dict[str, Rank] = {}

    def rank(self, sequence: Sequence) -> Rank:
        """Arrival, then serial number."""
        return _protected_rank(sequence) if sequence.protection else (1.0, sequence.arrival, float(sequence.serial))

    def line_of(self, sequence: Sequence) -> Line:
        """One line a tenant, and one for those that give way no more."""
        return None if sequence.protection else sequence.tenant

    def standing(self, line: Line) -> float:
        """The tenant's service, with what was promised to it."""
        if line is None:
            return -1.0
        return self._ledger.service(line) + self._promised.get(line, 0.0)

    def by_merit(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """By the tenants' service, then by rank."""
        lines: dict[Line, list[Sequence]] = {}
        for sequence in sorted(sequences, key=rank_of):
            lines.setdefault(self.line_of(sequence), []).append(sequence)
        ordered = sorted(lines, key=lambda line: -1.0 if line is None else self._ledger.service(line))
        return [sequence for line in ordered for sequence in lines[line]]

    def choose_decodes(self, decoding: list[Sequence], budget: int) -> list[Sequence]:
        """Each token to the tenant that, with those just given, was served least; a tenant's sequences take turns."""
        lines: dict[str, list[Sequence]] = {}
        for sequence in decoding:
            lines.setdefault(sequence.tenant, []).append(sequence)
        turns = {tenant: _next_in_turn(line, self._last_decoded.get(tenant, ())) for tenant, line in lines.items()}
        chosen = self._ledger.share_out(turns, budget)
        self._last_decoded = {tenant: rank for tenant, rank in self._last_decoded.items() if tenant in lines}
        for sequence in chosen:
            self._last_decoded[sequence.tenant] = sequence.rank
        return chosen

    def begin_waiting(self, sequence: Sequence) -> None:
        """A tenant that comes back has no claim from the time it was away."""
        self._ledger.begin_waiting(sequence.tenant)

    def end_waiting(self, sequence: Sequence) -> None:
        """One of the tenant's sequences less waits."""
        self._ledger.end_waiting(sequence.tenant)

    def promise(self, prefilling: Iterable[Sequence]) -> None:
        """What their prompts will cost counts for those that join."""
        self._promised = {}
        for sequence in prefilling:
            self.admit(sequence)

    def admit(self, sequence: Sequence) -> None:
        """What its prompt will cost counts for those that join after it."""
        done = max(sequence.num_computed_tokens, sequence.num_counted_prompt_tokens)
        cost = self._ledger.cost(max(0, sequence.num_prompt_tokens - done), 0, sequence.weight)
        self._promised[sequence.tenant] = self._promised.get(sequence.tenant, 0.0) + cost

    def charge(self, sequence: Sequence, *, num_prompt_tokens: int, num_generated: int) -> None:
        """The tenant was served."""
        self._ledger.charge(sequence.tenant, self._ledger.cost(num_prompt_tokens, num_generated, sequence.weight))


def _protected_rank(sequence: Sequence) -> Rank:
    return (0.0, float(sequence.protection))


def _next_in_turn(line: Seq[Sequence], after: Rank) -> list[Sequence]:
    """The line, which is sorted by rank, from the first behind `after` on and round again."""
    begin = bisect.bisect_right(line, after, key=rank_of)
    return [*line[begin:], *line[:begin]]
