"""When keys were last used: written down beside the requests, which never wait for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from serving.admission.services import LAST_USED_SECONDS, note_key_uses
from serving.threads import in_thread

logger = logging.getLogger(__name__)

_MAX_REMEMBERED = 10_000


class KeyUses:
    """Owns which keys were used and when that was last told to the database, and the task that tells it; on one event
    loop. `write` blocks. What cannot be written is logged and told at the key's next use after a minute."""

    def __init__(
        self,
        *,
        write: Callable[[Collection[str]], None] = note_key_uses,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._monotonic = monotonic
        self._told: dict[str, float] = {}
        self._due: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def note(self, prefix: str) -> None:
        """The key is used now."""
        now = self._monotonic()
        told = self._told.get(prefix)
        if told is not None and now - told < LAST_USED_SECONDS:
            return
        if len(self._told) >= _MAX_REMEMBERED:
            # Who is forgotten too early is written down too often, which the database's own check prevents.
            self._told.clear()
        self._told[prefix] = now
        self._due.add(prefix)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_due())

    async def close(self) -> None:
        """Return when all uses are written down."""
        if self._task is not None:
            await self._task

    async def _write_due(self) -> None:
        while self._due:
            due, self._due = self._due, set()
            try:
                await in_thread(self._write, due)
            except Exception as error:
                logger.warning("the last use of %d keys could not be written down: %s", len(due), error)
