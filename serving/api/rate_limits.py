"""What is left of a minute's quotas, in OpenAI's headers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from redis.exceptions import RedisError

from serving.admission.accounts import Account
from serving.admission.door import Door
from serving.admission.standing import RateLimit, counted_charges, has_rate_limits, rate_limits_of

Headers = list[tuple[bytes, bytes]]


class KnownLimits:
    """Owns what is known of one HTTP request's limits; on the event loop. `account` is set once the key was checked."""

    def __init__(self) -> None:
        self.account: Account | None = None
        self._limits: list[RateLimit] | None = None

    def set(self, limits: list[RateLimit]) -> None:
        """Take over what the door said last."""
        self._limits = limits

    async def headers(self, door: Door) -> Headers:
        """The headers; of a request that did not go through the door, after asking it. None where it cannot tell."""
        if self.account is None or (self._limits is None and not has_rate_limits(self.account)):
            return []
        if self._limits is None:
            try:
                standings = await door.standing(self.account)
            except (RedisError, OSError):
                return []
            self._limits = rate_limits_of(counted_charges(self.account), standings)
        return headers_of(self._limits)


def headers_of(limits: Sequence[RateLimit]) -> Headers:
    """`x-ratelimit-…` of each kind that is bounded."""
    headers = []
    for limit in limits:
        values = {
            "limit": str(limit.limit),
            "remaining": str(limit.remaining),
            "reset": spell_duration(limit.reset_seconds),
        }
        headers += [(f"x-ratelimit-{name}-{limit.kind}".encode(), value.encode()) for name, value in values.items()]
    return headers


def spell_duration(seconds: float) -> str:
    """As OpenAI writes durations: `0s`, `20ms`, `1.5s`, `6m0s`; rounded up to the millisecond."""
    milliseconds = math.ceil(max(0.0, round(seconds * 1000, 3)))
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
