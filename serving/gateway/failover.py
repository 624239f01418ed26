"""When a request is submitted again, and when it is given up."""

from __future__ import annotations

from typing import Literal

from serving.contracts.errors import DomainError, EngineFailure, QueueTimeout, Unavailable
from serving.contracts.ids import EngineId
from serving.contracts.tunables import Tunables
from serving.gateway.requests import Choice, InFlight

ACCEPT_SECONDS = 10.0
"""An engine that has read a Submit accepts it between two steps: after so long it was lost."""

MAX_LOST_ENGINES = 3
"""A request that has seen so many engines die may well be what kills them."""


class Failover:
    """Judges choices that have not ended. Owns no state but its limit; called on the gateway's event loop.

    The set of living engines is only ever as old as the last time when Redis answered, so nobody is judged dead while
    Redis itself is out of reach.
    """

    def __init__(self, *, failover_seconds: float) -> None:
        self.patience_seconds = failover_seconds

    def is_overdue(self, choice: Choice, *, now: float) -> bool:
        """Whether the choice's acceptance is late, so that its entry in the inbox is worth a look."""
        return choice.engine_id is None and now - choice.submitted_at > ACCEPT_SECONDS

    def judge(
        self,
        request: InFlight,
        choice: Choice,
        *,
        now: float,
        tunables: Tunables,
        living: frozenset[EngineId],
        lost: bool,
    ) -> DomainError | Literal["resubmit"] | None:
        """What becomes of a choice; `lost` says that its Submit or its tokens are known to be gone."""
        waited_ms = (now - request.generation.arrived_at) * 1000
        if not request.started and waited_ms > tunables.max_queue_wait_ms:
            return QueueTimeout(f"not scheduled within max_queue_wait_ms = {tunables.max_queue_wait_ms:g}")
        if choice.engine_id is not None and choice.engine_id not in living:
            choice.num_lost_engines += 1
            choice.lost_at = now
            if choice.num_lost_engines >= MAX_LOST_ENGINES:
                return EngineFailure(f"given up after {choice.num_lost_engines} engines died while running it")
            return "resubmit"
        if choice.lost_at is not None and now - choice.lost_at > self.patience_seconds:
            return Unavailable(f"its engine died, and no other took it within {self.patience_seconds:g} s")
        return "resubmit" if lost else None
