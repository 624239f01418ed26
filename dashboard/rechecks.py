"""Whether those who have a page open still may: asked for pages that ask for nothing themselves."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dashboard.sessions import NotAllowed, SignedOut
from dashboard.threads import in_thread_of
from serving.contracts.errors import PoolNotFound

logger = logging.getLogger(__name__)
T = TypeVar("T")
ENDINGS = (SignedOut, NotAllowed, PoolNotFound)
"""What a check may find out, and what then ends the page."""


class Rechecks:
    """Owns the few threads on which all pages of a process are checked, used from its event loop. A database that
    hangs keeps those threads and no others, and its absence is logged once, however many pages notice it. `chance`
    gives numbers from 0 to 1."""

    def __init__(self, *, max_concurrent: int = 2, chance: Callable[[], float] = random.random) -> None:
        self._threads = ThreadPoolExecutor(max_concurrent, thread_name_prefix="recheck")
        self._chance = chance
        self._is_away = False

    def pause(self, longest_seconds: float) -> float:
        """How long a page waits for its next check: so that pages that opened together, as after a restart, do not all
        ask at the same moment, at least half of it."""
        return longest_seconds * (0.5 + self._chance() / 2)

    async def run(self, check: Callable[[], T], *, within_seconds: float) -> T | None:
        """What `check` gives; None where it fails, or does not get its turn and end within that time.

        Raises those of `ENDINGS`, which are answers.
        """
        try:
            async with asyncio.timeout(within_seconds):
                result = await in_thread_of(self._threads, check)
        except ENDINGS:
            self._note_answer()
            raise
        except TimeoutError:
            self._note_absence(f"no answer within {within_seconds:g} s")
            return None
        except Exception as error:
            self._note_absence(f"{type(error).__name__}: {error}")
            return None
        self._note_answer()
        return result

    def _note_absence(self, reason: str) -> None:
        if not self._is_away:
            logger.warning("Open pages cannot be checked, and stay open: %s", reason)
        self._is_away = True

    def _note_answer(self) -> None:
        if self._is_away:
            logger.info("Open pages can be checked again")
        self._is_away = False
