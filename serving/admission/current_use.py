"""What tenants and keys use of their quotas at this moment, as the door counts it. Blocking."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from redis import Redis

from serving.admission.door import WINDOW_SECONDS
from serving.admission.door_scripts import USE
from serving.admission.standing import COUNTED
from serving.contracts import keys
from serving.contracts.quotas import Quotas

_UNKNOWN = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CurrentUse:
    """Requests and tokens of one subject's last minute, and what waits or runs. The sums of the day and the month (UTC)
    hold what is reserved for what is open; None where the door does not know them, but the ledger does."""

    requests: int = 0
    tokens: int = 0
    open: int = 0
    tokens_of_day: int | None = None
    tokens_of_month: int | None = None


def is_counted(quotas: Quotas) -> bool:
    """Whether the door counts what someone with these quotas uses; else it knows nothing of them."""
    return any(getattr(quotas, name) is not None for name in COUNTED)


def read_current_use(redis: Redis, subjects: Sequence[str]) -> list[CurrentUse]:
    """What each of `subjects` uses now, each `tenant:<id>` or `key:<public prefix>`, in one call.

    What the door does not count is 0. Raises Redis's errors.
    """
    if not subjects:
        return []
    makers = (keys.quota_book, keys.quota_charges, keys.quota_leases)
    names = [make(subject) for subject in subjects for make in makers]
    answer = redis.register_script(USE)(keys=names, args=[round(WINDOW_SECONDS * 1000)])
    return [_use_of(row) for row in cast(list[list[int]], answer)]


def _use_of(row: Sequence[int]) -> CurrentUse:
    requests, tokens, is_open, of_day, of_month = row
    return CurrentUse(
        requests=requests,
        tokens=tokens,
        open=is_open,
        tokens_of_day=None if of_day == _UNKNOWN else of_day,
        tokens_of_month=None if of_month == _UNKNOWN else of_month,
    )
