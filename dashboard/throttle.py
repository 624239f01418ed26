"""How often a password may be tried: so many times for a name and from an address, counted over all web processes.

What is counted under is one of a fixed number of places, so that names made up by the million take no more of Redis
than the most that there can be; a secret says which, so that nobody can choose whom to share a place with. A name that
no user has is counted like any other: that it is held back says nothing of it.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging

from django.utils.crypto import salted_hmac
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys

logger = logging.getLogger(__name__)

SECONDS = 300
MAX_FAILURES = {"name": 10, "address": 60}
"""Failures within `SECONDS` after the first of them. A proxy's address may stand for many people."""

_NUM_PLACES = 65_536


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A password that is about to be tried. Where `wait_seconds` is not 0, it must not be; `is_first_held_back` tells
    the first of those. One that is not counted has nothing to be forgotten."""

    is_counted: bool = True
    wait_seconds: int = 0
    is_first_held_back: bool = False


def count_attempt(redis: Redis, *, name: str, address: str) -> Attempt:
    """Count a try before it is made, as if it failed: of many at once no more are let through than one by one.

    Blocking. Without Redis every try is let through: whoever mends it must be able to sign in.
    """
    places = [("name", name), ("address", _network_of(address))]
    try:
        # Each with its end at once: a count without one would hold back for good.
        pipe = redis.pipeline(transaction=True)
        for kind, subject in places:
            place = _place(kind, subject)
            pipe.set(place, 0, ex=SECONDS, nx=True)
            pipe.incr(place)
            pipe.ttl(place)
        answers = pipe.execute()
    except (RedisError, OSError) as error:
        logger.warning("a sign-in is not counted, as Redis does not answer: %s", error)
        return Attempt(is_counted=False)
    counts = {kind: (int(answers[3 * i + 1]), int(answers[3 * i + 2])) for i, (kind, _) in enumerate(places)}
    over = {kind: ttl for kind, (count, ttl) in counts.items() if count > MAX_FAILURES[kind]}
    if not over:
        return Attempt()
    return Attempt(
        wait_seconds=max(1, *over.values()),
        is_first_held_back=any(counts[kind][0] == MAX_FAILURES[kind] + 1 for kind in over),
    )


def forget_failures(redis: Redis, *, name: str, address: str) -> None:
    """The password was right: what the name failed before is forgotten, and of the address this try. Blocking."""
    place = _place("address", _network_of(address))
    try:
        pipe = redis.pipeline(transaction=True)
        pipe.delete(_place("name", name))
        pipe.set(place, 1, ex=SECONDS, nx=True)
        pipe.decr(place)
        pipe.execute()
    except (RedisError, OSError) as error:
        logger.warning("a sign-in is not counted, as Redis does not answer: %s", error)


def _place(kind: str, subject: str) -> str:
    digest = salted_hmac(f"dashboard.throttle.{kind}", subject.encode("utf-8", "replace"), algorithm="sha256").digest()
    return keys.sign_in_failures(kind, int.from_bytes(digest[:8], "big") % _NUM_PLACES)


def _network_of(address: str) -> str:
    """What one person has of addresses: one of version 4, the 64 bits of a network of version 6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
