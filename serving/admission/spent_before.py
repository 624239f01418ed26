"""What a tenant or key used of the day and the month, as the ledger has it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Awaitable, Callable

from serving.admission.accounts import Charge
from serving.contracts.errors import Unavailable


@dataclasses.dataclass(frozen=True, slots=True)
class SpentBefore:
    """Owns nothing. `read` gives the tokens of a subject since a day; it may raise whatever the ledger raises."""

    read: Callable[[str, datetime.date], Awaitable[int]]

    async def look_up(self, charge: Charge, *, today: datetime.date) -> tuple[int, int]:
        """Tokens of the day and of the month.

        Raises `Unavailable` where the ledger cannot be read: nobody may use what nobody can count.
        """
        try:
            return await self.read(charge.subject, today), await self.read(charge.subject, today.replace(day=1))
        except Exception as error:
            raise Unavailable("the ledger of what was used cannot be read") from error
