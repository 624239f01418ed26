"""How sequences end, and what their owners are told."""

from __future__ import annotations

from serving.contracts.ids import OwnerId
from serving.contracts.messages import Event, Finished, FinishReason, RefusalCode, Refused, Returned, SequenceKey
from serving.engine.recent import RecentMap
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence, SequenceStatus
from serving.engine.stats import Counters

_MAX_REMEMBERED = 10_000


class Endings:
    """Owns the events that were not handed over yet, and which attempts have ended, of the last 10,000; used by the
    engine's thread only. A sequence that ends leaves the roster."""

    def __init__(self, roster: Roster, counters: Counters) -> None:
        self.counters = counters
        self._roster = roster
        self._ended_attempts: RecentMap[SequenceKey, int] = RecentMap(_MAX_REMEMBERED)
        self._events: list[tuple[OwnerId, Event]] = []

    @property
    def has_events(self) -> bool:
        """Whether owners are to be told something."""
        return bool(self._events)

    def take_events(self) -> list[tuple[OwnerId, Event]]:
        """Hand over the events gathered since the last time, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    def last_attempt(self, key: SequenceKey) -> int | None:
        """Which attempt of a key has ended, if it is remembered."""
        return self._ended_attempts.get(key)

    def tell(self, sequence: Sequence, event: Event) -> None:
        """Let a sequence's owner hear of `event` next."""
        self._events.append((sequence.owner_id, event))

    def refuse(self, sequence: Sequence, code: RefusalCode, message: str) -> None:
        """Turn away a sequence that waits."""
        self.let_go(sequence)
        self.tell(sequence, Refused(sequence.key, sequence.attempt, code, message))

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        message: str = "",
        embedding: bytes | None = None,
    ) -> None:
        """End a live sequence, which ran or will not run, for this reason."""
        self.let_go(sequence)
        key, attempt, timings = sequence.key, sequence.attempt, sequence.timings(now)
        self.tell(sequence, Finished(key, attempt, reason, sequence.num_generated, timings, message, embedding))

    def give_back(self, sequence: Sequence) -> None:
        """Let another engine have a live sequence."""
        self.let_go(sequence)
        self.tell(sequence, Returned(sequence.key, sequence.attempt))

    def let_go(self, sequence: Sequence) -> None:
        """End a live sequence without a word."""
        if sequence.status is SequenceStatus.RUNNING:
            self.counters.left += 1
        self._roster.leave(sequence)
        self._ended_attempts.keep(sequence.key, sequence.attempt)
