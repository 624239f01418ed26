"""The way from requests that end to the durable ledger."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Awaitable, Callable

from serving.admission.permits import Permit
from serving.admission.usage import UsageRow
from serving.contracts.accounting import Spent

logger = logging.getLogger(__name__)

_STORE_SECONDS = 1.0

_Place = tuple[int, str, datetime.date]


class Ledger:
    """Owns what this process's requests used and is not stored yet, and the task that stores it once a second; on one
    event loop.

    Holds at most one row a key and day, whatever the traffic, also while the database is out of reach: it is stored
    when that answers again. `add` stores all rows or none, and raises where it stored none. A process that dies loses
    what ended in its last second.
    """

    def __init__(
        self, add: Callable[[list[UsageRow]], Awaitable[None]], *, every_seconds: float = _STORE_SECONDS
    ) -> None:
        self._add = add
        self._every_seconds = every_seconds
        self._pending: dict[_Place, UsageRow] = {}
        self._storing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._turn = asyncio.Lock()

    def start(self) -> None:
        """Begin to store."""
        self._storing = asyncio.create_task(self._store_until_stopped())

    async def stop(self) -> None:
        """Store what is left, and no more after that."""
        self._stopping.set()
        if self._storing is not None:
            await self._storing
        await self.store()
        if self._pending:
            tokens = sum(row.prompt_tokens + row.completion_tokens for row in self._pending.values())
            logger.error("%d tokens that were used could not be stored, and are lost", tokens)

    async def store(self) -> None:
        """Return once all that was noted before is stored, or, where that fails, is kept to be stored later."""
        # Whoever waits may be cancelled, as a view is whose client leaves: what is being stored is not.
        await asyncio.shield(asyncio.ensure_future(self._store()))

    async def _store(self) -> None:
        async with self._turn:
            taken, self._pending = self._pending, {}
            if not taken:
                return
            try:
                await self._add(list(taken.values()))
            except Exception as error:
                logger.warning("what was used cannot be stored yet: %s", error)
                for row in taken.values():
                    self._keep(row)

    def note(self, permit: Permit, spent: Spent) -> None:
        """A request ended that was scheduled, on the account of `permit`; nothing is kept of no tenant."""
        account = permit.account
        if account.tenant_id is None:
            return
        self._keep(
            UsageRow(
                tenant_id=account.tenant_id,
                key_prefix=account.key_prefix,
                day=permit.day,
                num_requests=1,
                prompt_tokens=spent.prompt_tokens,
                completion_tokens=spent.completion_tokens,
            )
        )

    def _keep(self, row: UsageRow) -> None:
        place = (row.tenant_id, row.key_prefix, row.day)
        before = self._pending.get(place)
        self._pending[place] = row if before is None else before.plus(row)

    async def _store_until_stopped(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._every_seconds)
            await self.store()
