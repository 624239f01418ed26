"""What is stored, as the monitor asks for it."""

from __future__ import annotations

import asyncio

from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables
from serving.contracts.tunables import Tunables
from serving.telemetry.reconciler import StoredForPool, Trial
from serving.telemetry.rounds import StoredTunables
from tests.telemetry.conftest import POOL

STORED = AnnouncedTunables(3, Tunables(max_running=5))


class Database:
    """Answers, refuses to, or hangs until nobody waits for the answer any more."""

    def __init__(self) -> None:
        self.works = True
        self.hangs = False
        self.stored: dict[PoolName, AnnouncedTunables | None] = {POOL: STORED}
        self.trial: Trial | None = None
        self.num_questions = 0
        self.num_given_up = 0

    async def read(self) -> StoredTunables:
        self.num_questions += 1
        if self.hangs:
            await self._hang()
        if not self.works:
            raise RuntimeError("the disk is gone")
        return {
            pool: None if stored is None else StoredForPool(stored, self.trial) for pool, stored in self.stored.items()
        }

    async def _hang(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.num_given_up += 1
