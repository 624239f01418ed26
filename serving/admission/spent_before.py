"""What a tenant or key used of the day and the month, as the ledger has it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Awaitable, Callable

from serving.admission.accounts import Charge
from serving.contracts.errors import RETRY_SECONDS, Unavailable
from serving.outages import Outage


@dataclasses.dataclass(frozen=True, slots=True)
class SpentBefore:
    """Owns since when the ledger does not answer; on one event loop.

    `read` gives the tokens of a subject since a day; it may raise whatever the ledger raises.
    """

    read: Callable[[str, datetime.date], Awaitable[int]]
    outage: Outage = dataclasses.field(default_factory=lambda: Outage(usual_seconds=RETRY_SECONDS))

    async def look_up(self, charge: Charge, *, today: datetime.date) -> tuple[int, int]:
        """Tokens of the day and of the month.

        Raises `Unavailable` where the ledger cannot be read: nobody may use what nobody can count.
        """
        try:
            spent = await self.read(charge.subject, today), await self.read(charge.subject, today.replace(day=1))
        except Exception as error:
            self.outage.note_silence()
            raise Unavailable(
                "the ledger of what was used cannot be read", retry_after_seconds=self.outage.retry_after_seconds
            ) from error
        self.outage.note_answer()
        return spent
