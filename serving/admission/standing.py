"""Where an account stands: what it used of its quotas in the last minute."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from serving.admission.accounts import Account, Charge

COUNTED = (
    "requests_per_minute",
    "tokens_per_minute",
    "tokens_per_day",
    "tokens_per_month",
    "max_concurrent_requests",
)
"""The quotas that are counted in Redis, in the order in which its scripts number them."""

_KINDS: tuple[tuple[Literal["requests", "tokens"], str], ...] = (
    ("requests", "requests_per_minute"),
    ("tokens", "tokens_per_minute"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """Requests and tokens of one subject's last minute, and the seconds until all of them have left it."""

    requests: int
    tokens: int
    reset_seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """What is left of the tightest quota of a kind, a minute's requests or tokens."""

    kind: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset_seconds: float


def counted_charges(account: Account) -> tuple[Charge, ...]:
    """The charges that have a quota to count; the others leave no trace in Redis."""
    return tuple(charge for charge in account.charges if any(bounds_of(charge)))


def bounds_of(charge: Charge) -> list[int | None]:
    """The counted quotas' bounds, in the order of `COUNTED`."""
    return [getattr(charge.quotas, name) for name in COUNTED]


def has_rate_limits(account: Account) -> bool:
    """Whether any quota is of a minute."""
    return any(getattr(charge.quotas, name) is not None for charge in account.charges for _, name in _KINDS)


def rate_limits_of(charges: Iterable[Charge], standings: Sequence[Standing]) -> list[RateLimit]:
    """For each kind that is bounded, the quota with the least left."""
    pairs = list(zip(charges, standings, strict=True))
    tightest = []
    for kind, name in _KINDS:
        found = [
            RateLimit(
                kind=kind,
                limit=bound,
                remaining=max(0, bound - getattr(standing, kind)),
                reset_seconds=standing.reset_seconds,
            )
            for charge, standing in pairs
            if (bound := getattr(charge.quotas, name)) is not None
        ]
        if found:
            tightest.append(min(found, key=lambda limit: (limit.remaining, limit.limit)))
    return tightest
