"""When a request is submitted again, and when it is given up."""

from __future__ import annotations

from typing import Literal

from serving.contracts.errors import DomainError, EngineFailure, NoEngine, QueueTimeout
from serving.contracts.ids import EngineId
from serving.contracts.tunables import Tunables
from serving.gateway.requests import Choice, InFlight

ACCEPT_SECONDS = 10.0
"""An engine that has read a Submit says so before its next step: after so long the Submit is taken for lost."""

SILENCE_SECONDS = 60.0
"""An engine repeats every few seconds, between two steps, what it holds: of what it says nothing it knows nothing."""

MAX_LOST_ENGINES = 3
"""A request that has seen so many engines die may well be what kills them."""


class Failover:
    """Judges choices that have not ended. Owns no state but its limit; called on the gateway's event loop.

    Nobody is judged dead while Redis itself is out of reach, nor soon after: its caller sees to that.
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
        living: frozenset[EngineId] | None,
        has_takers: bool,
        lost: bool,
    ) -> DomainError | Literal["resubmit"] | None:
        """What becomes of a choice.

        `living` is None while nobody can be judged; `has_takers` says that an engine takes work, which one that drains
        does not; `lost` says that the choice's Submit or its tokens may be gone.
        """
        if choice.engine_id is None and not request.started:
            error = _overdue(request, now=now, tunables=tunables)
            if error is not None:
                return error
        if choice.lost_at is not None and living is not None and _goes_on(request, living):
            choice.lost_at = now  # an engine that drains ends what it has begun: no reason to break that off
        if choice.lost_at is not None and now - choice.lost_at > self.patience_seconds:
            return NoEngine(f"its engine was lost, and no other took it within {self.patience_seconds:g} s")
        if lost:
            return "resubmit"
        if living is None:
            return None
        if choice.engine_id is None:
            if request.started and choice.lost_at is None and not has_takers:
                choice.lost_at = now
            return None
        if choice.engine_id not in living:
            choice.num_lost_engines += 1
            if choice.num_lost_engines >= MAX_LOST_ENGINES:
                return EngineFailure(f"given up after {choice.num_lost_engines} engines died while running it")
            return "resubmit"
        return "resubmit" if now - choice.last_heard_at > SILENCE_SECONDS else None


def _goes_on(request: InFlight, living: frozenset[EngineId]) -> bool:
    """Whether a living engine has any of the request's choices."""
    return any(choice.engine_id in living for choice in request.unfinished())


def _overdue(request: InFlight, *, now: float, tunables: Tunables) -> QueueTimeout | None:
    """The refusal of a request that nothing has begun of, where it has waited too long."""
    waited_seconds = now - request.generation.arrived_at
    own_seconds = request.generation.timeout_seconds
    if own_seconds is not None and waited_seconds > own_seconds:
        return QueueTimeout(f"not scheduled within its own timeout of {own_seconds:g} s")
    if waited_seconds * 1000 > tunables.max_queue_wait_ms:
        return QueueTimeout(f"not scheduled within max_queue_wait_ms = {tunables.max_queue_wait_ms:g}")
    return None
