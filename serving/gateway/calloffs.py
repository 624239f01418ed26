"""What engines are still to be told: which attempts nobody wants any more."""

from __future__ import annotations

import dataclasses
from collections import deque

from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import Abort, SequenceKey
from serving.gateway.link import EngineLink
from serving.gateway.pools import PoolWatcher
from serving.gateway.requests import Choice

_BATCH = 256


@dataclasses.dataclass(frozen=True, slots=True)
class _CallOff:
    """An attempt to be ended, wherever it is: in the inbox, or at the engine that accepted it, if any did."""

    pool: PoolName
    key: SequenceKey
    attempt: int
    entry_id: bytes | None
    engine_id: EngineId | None


class CallOffs:
    """Owns the attempts that are called off and whose engines were not told yet; on the gateway's event loop.

    What cannot be sent is kept and sent later: an attempt that nobody reads would hold its place to its end.
    """

    def __init__(self, link: EngineLink, watcher: PoolWatcher) -> None:
        self._link = link
        self._watcher = watcher
        self._owed: deque[_CallOff] = deque()
        self._flushing = False

    def add(self, pool: PoolName, choice: Choice) -> None:
        """Call a choice's current attempt off."""
        self._owed.append(_CallOff(pool, choice.key, choice.attempt, choice.entry_id, choice.engine_id))

    def add_entry(self, pool: PoolName, key: SequenceKey, *, attempt: int, entry_id: bytes) -> None:
        """Call off an attempt that was called off before its entry was in the inbox."""
        self._owed.append(_CallOff(pool, key, attempt, entry_id, None))

    async def flush(self) -> None:
        """Tell engines all there is to tell, many in one go. Errors of Redis pass through; nothing is lost by them."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._owed:
                batch = [self._owed[index] for index in range(min(_BATCH, len(self._owed)))]
                await self._send(batch)
                for _ in batch:
                    self._owed.popleft()
        finally:
            self._flushing = False

    async def _send(self, batch: list[_CallOff]) -> None:
        entries = [(off.pool, off.entry_id) for off in batch if off.entry_id is not None]
        aborts = [(engine_id, Abort(off.key, off.attempt)) for off in batch for engine_id in self._targets(off)]
        await self._link.call_off(entries, aborts)

    def _targets(self, off: _CallOff) -> frozenset[EngineId]:
        # Who has read it and not said so yet remembers the abort until the Submit's turn comes.
        return self._watcher.engine_ids(off.pool) if off.engine_id is None else frozenset({off.engine_id})
