"""Why the door refuses, in words, and when to try again. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence

from serving.admission.accounts import Charge
from serving.admission.permits import Weight
from serving.admission.standing import COUNTED, bounds_of
from serving.contracts.errors import RETRY_SECONDS, QueueFull, QuotaExceeded, QuotaSpent, RateLimited
from serving.contracts.tunables import Tunables

_LONGEST_RETRY_SECONDS = 60

_WHAT = {
    "requests_per_minute": "requests of the last minute",
    "tokens_per_minute": "tokens of the last minute",
    "tokens_per_day": "tokens of this day (UTC)",
    "tokens_per_month": "tokens of this month (UTC)",
    "max_concurrent_requests": "requests at once",
}


def estimate_retry_seconds(excess: int, *, drained_per_second: float) -> float:
    """Seconds until `excess` has left a waiting room that drains at that rate: from 1 to 60, and 5 where nothing is
    known of the rate."""
    if drained_per_second <= 0:
        return RETRY_SECONDS
    return max(1, math.ceil(min(_LONGEST_RETRY_SECONDS, excess / drained_per_second)))


def queue_full(detail: Sequence[int], *, weights: Sequence[Weight], tunables: Tunables) -> QueueFull:
    """The error for a script's answer: the sequences and tokens that wait, what is too much, and the rate at which that
    leaves in a thousand seconds."""
    sequences, tokens, excess, drained_per_1000_seconds = detail
    alone = (sum(weight.sequences for weight in weights), sum(weight.tokens for weight in weights))
    is_final = alone[0] > tunables.max_queue_requests or alone[1] > tunables.max_queue_tokens
    message = (
        f"the queue is full: {sequences} of {tunables.max_queue_requests} sequences and "
        f"{tokens} of {tunables.max_queue_tokens} prompt tokens wait already"
    )
    if is_final:
        message += f", and this request asks for {alone[0]} and {alone[1]} alone, which can never be"
    seconds = estimate_retry_seconds(excess, drained_per_second=drained_per_1000_seconds / 1000)
    return QueueFull(message, retry_after_seconds=seconds, is_final=is_final)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for: its prompts, and the tokens that it may use at most, of which some were charged before
    its prompt was tokenised."""

    requests: int
    tokens: int
    already_charged: int = 0


def quota_exceeded(charge: Charge, detail: Sequence[int], *, asked: Asked) -> QuotaExceeded:
    """The error for a script's answer: the quota's number from 1 on, what is used of it, and the milliseconds until
    there is room, -1 where it cannot tell."""
    number, used, wait_ms = detail
    name, bound = COUNTED[number - 1], bounds_of(charge)[number - 1]
    assert bound is not None, "what is not bounded cannot be exceeded"
    counts_requests = name in ("requests_per_minute", "max_concurrent_requests")
    wanted = asked.requests if counts_requests else asked.tokens
    used_by_others = used if counts_requests else used - asked.already_charged
    message = (
        f"{charge.whose}'s quota {name} is {bound}: {used_by_others} {_WHAT[name]} are used, and this request asks for "
        f"{wanted}"
    )
    kind = QuotaSpent if name in ("tokens_per_day", "tokens_per_month") else RateLimited
    if wanted > bound:
        message += " alone, which can never be"
        return kind(message, retry_after_seconds=_LONGEST_RETRY_SECONDS, is_final=True)
    # Of requests at once nobody knows when one ends.
    seconds = RETRY_SECONDS if wait_ms < 0 else max(1, math.ceil(wait_ms / 1000))
    if kind is RateLimited:
        seconds = min(seconds, _LONGEST_RETRY_SECONDS)
    return kind(message, retry_after_seconds=seconds, is_final=seconds > _LONGEST_RETRY_SECONDS)


def day_of(now_seconds: int) -> datetime.date:
    """The day of UTC."""
    return datetime.datetime.fromtimestamp(now_seconds, datetime.UTC).date()
