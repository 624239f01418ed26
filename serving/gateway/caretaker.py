"""Looks after the requests in flight, whatever becomes of engines and of Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from redis.exceptions import RedisError

from serving.contracts.errors import DomainError, Unavailable
from serving.contracts.ids import PoolName, RequestId
from serving.gateway.calloffs import CallOffs
from serving.gateway.failover import Failover
from serving.gateway.link import EngineLink, is_after
from serving.gateway.pools import PoolWatcher
from serving.gateway.requests import Choice, InFlight
from serving.outages import Outage

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 4.0
"""Longer than an engine lives without a heartbeat: so long after an outage, a missing heartbeat means nothing."""


class Caretaker:
    """Owns what is known of Redis's health, and tells `outage` of it; on the gateway's event loop, which calls `look` a
    few times a second."""

    def __init__(
        self,
        *,
        link: EngineLink,
        watcher: PoolWatcher,
        call_offs: CallOffs,
        failover: Failover,
        requests: Mapping[RequestId, InFlight],
        fail: Callable[[InFlight, DomainError], None],
        resubmit: Callable[[InFlight, Choice], None],
        outage: Outage,
        clock: Callable[[], float],
    ) -> None:
        self._link = link
        self._watcher = watcher
        self._call_offs = call_offs
        self._failover = failover
        self._requests = requests
        self._fail = fail
        self._resubmit = resubmit
        self._clock = clock
        self._outage = outage
        self._has_lost = False
        self._reachable_since = clock()

    async def look(self) -> None:
        """Beat, look at engines and inboxes, and see to every request. Errors of Redis pass through."""
        try:
            remembered = await self._link.beat()
            await self._watcher.refresh()
        except (RedisError, OSError):
            self._endure_outage()
            raise
        now = self._clock()
        # What engines said in an outage's last moments may never have been written down.
        lost = self._has_lost = self._has_lost or not remembered or self._outage.lasts_seconds is not None
        if lost:
            self._reachable_since = now
            self._link.read_again()
            if self._requests:
                logger.warning("Redis was away or has forgotten this process: what runs is submitted again")
        read_up_to = await self._look_at_inboxes(now)
        for request in list(self._requests.values()):
            self._check(request, now=now, lost=lost, read_up_to=read_up_to)
        self._outage.note_answer()
        self._has_lost = False
        await self._call_offs.flush()

    def _endure_outage(self) -> None:
        self._outage.note_silence()
        if (self._outage.lasts_seconds or 0.0) > self._failover.patience_seconds:
            seconds = self._outage.retry_after_seconds
            for request in list(self._requests.values()):
                error = Unavailable("the queue has been out of reach for too long", retry_after_seconds=seconds)
                self._fail(request, error)

    async def _look_at_inboxes(self, now: float) -> dict[PoolName, bytes | None]:
        """How far engines have read the inboxes of those choices whose acceptance is late."""
        late = {
            request.generation.pool
            for request in self._requests.values()
            if any(self._failover.is_overdue(choice, now=now) for choice in request.unfinished())
        }
        return {pool: await self._link.read_up_to(pool) for pool in late}

    def _check(self, request: InFlight, *, now: float, lost: bool, read_up_to: Mapping[PoolName, bytes | None]) -> None:
        pool = request.generation.pool
        view = self._watcher.view(pool)
        can_judge = now - self._reachable_since > _GRACE_SECONDS
        for choice in request.unfinished():
            gone = lost
            if pool in read_up_to and self._failover.is_overdue(choice, now=now):
                if choice.entry_id is not None and is_after(choice.entry_id, read_up_to[pool]):
                    choice.submitted_at = now  # it waits in the inbox, as it may
                else:
                    gone = True
            verdict = self._failover.judge(
                request,
                choice,
                now=now,
                tunables=view.tunables,
                living=self._watcher.engine_ids(pool) if can_judge else None,
                has_takers=view.has_engines,
                lost=gone,
            )
            if isinstance(verdict, DomainError):
                request.blame_engine_of(choice)
                self._fail(request, verdict)
                return
            if verdict == "resubmit":
                self._resubmit(request, choice)
