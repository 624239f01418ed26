"""Requests in flight, as their owners tell Redis twice a second, and orders to end one. Reading and ordering block."""

from __future__ import annotations

import dataclasses
import time
import uuid
from typing import Literal, cast

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import OwnerId, PoolName, RequestId

MAX_REQUESTS = 200
"""Of each owner the oldest so many are told one by one; the others are but counted."""

ORDER_LIFE_MS = 5_000
"""An order that nobody has taken by then is void: who gave it has been told that nobody answered."""

_PATIENCE_SECONDS = 3.0

AbortAnswer = Literal["aborted", "gone", "unanswered"]


class RunningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has not ended. `age_seconds` counts from its arrival; `num_ahead` are the sequences before it
    where it waits, None where no engine has it. `endpoint` is as in the request log, empty where it is not known."""

    request_id: RequestId
    pool: PoolName
    tenant: str
    key_prefix: str = ""
    endpoint: str = ""
    is_running: bool
    age_seconds: float
    num_choices: int
    prompt_tokens: int
    completion_tokens: int
    num_ahead: int | None = None


class RunningList(msgspec.Struct, frozen=True, kw_only=True):
    """What one owner has in flight: `num_in_flight` requests, of which the oldest stand in `requests`."""

    owner_id: OwnerId
    num_in_flight: int
    requests: tuple[RunningRequest, ...]


class AbortOrder(msgspec.Struct, frozen=True):
    """An operator wants a request ended; whoever owns it says so under `keys.abort_answers(order_id)`."""

    order_id: str
    request_id: RequestId


decode_running_list = msgspec.msgpack.Decoder(RunningList).decode
decode_abort_order = msgspec.msgpack.Decoder(AbortOrder).decode


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """What all owners have in flight together: `num_in_flight` requests, of which the oldest stand in `requests`."""

    num_in_flight: int
    requests: tuple[RunningRequest, ...]


def read_running(redis: Redis) -> Running:
    """All requests in flight, the oldest first, at most `MAX_REQUESTS` of them one by one.

    What an owner tells is at most half a second old. Raises Redis's errors.
    """
    lists = _read_lists(redis)
    requests = sorted(
        (request for told in lists.values() for request in told.requests),
        key=lambda request: (-request.age_seconds, request.request_id),
    )
    return Running(sum(told.num_in_flight for told in lists.values()), tuple(requests[:MAX_REQUESTS]))


def find_running(redis: Redis, request_id: str) -> RunningRequest | None:
    """One request in flight; None where it has ended, or its owner has too many older ones. Raises Redis's errors."""
    lists = _read_lists(redis).values()
    return next((one for told in lists for one in told.requests if one.request_id == request_id), None)


def order_abort(redis: Redis, request_id: str, *, patience_seconds: float = _PATIENCE_SECONDS) -> AbortAnswer:
    """Have a request ended by whichever process owns it, and wait until it has, or all say that they have it not.

    `unanswered` where an owner kept silent and no other has it, or Redis did once it may have had the order: then it
    may yet be ended within `ORDER_LIFE_MS`. Raises Redis's errors where nothing was ordered.
    """
    owners = set(_read_lists(redis))
    order = AbortOrder(uuid.uuid4().hex, RequestId(request_id))
    pipe = redis.pipeline(transaction=True)
    for owner_id in owners:
        pipe.rpush(keys.abort_orders(owner_id), msgspec.msgpack.encode(order))
        pipe.pexpire(keys.abort_orders(owner_id), ORDER_LIFE_MS)
    try:
        pipe.execute()
        return _await_answers(redis, order, num_owners=len(owners), patience_seconds=patience_seconds)
    except (RedisError, OSError):
        return "unanswered"


def _await_answers(redis: Redis, order: AbortOrder, *, num_owners: int, patience_seconds: float) -> AbortAnswer:
    ends_at = time.monotonic() + patience_seconds
    for _ in range(num_owners):
        left_seconds = max(0.01, ends_at - time.monotonic())  # to Redis, nought is for ever
        answer = cast("list[bytes] | None", redis.blpop([keys.abort_answers(order.order_id)], timeout=left_seconds))
        if answer is None:
            return "unanswered"
        if answer[1] == b"aborted":
            return "aborted"
    return "gone"


def _read_lists(redis: Redis) -> dict[OwnerId, RunningList]:
    """What each owner that lives has told; those that do not are forgotten by the way. One that was but late is known
    again with the next that it tells."""
    names = cast("set[bytes]", redis.smembers(keys.running_owners()))
    owner_ids = [OwnerId(name.decode()) for name in sorted(names)]
    if not owner_ids:
        return {}
    values = cast("list[bytes | None]", redis.mget([keys.running(owner_id) for owner_id in owner_ids]))
    gone = [owner_id for owner_id, value in zip(owner_ids, values, strict=True) if value is None]
    if gone:
        redis.srem(keys.running_owners(), *gone)
    told = {id_: decode_or_none(decode_running_list, value) for id_, value in zip(owner_ids, values, strict=True)}
    return {owner_id: one for owner_id, one in told.items() if one is not None}
