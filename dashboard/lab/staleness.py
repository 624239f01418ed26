"""Which results of a list were measured on something else than there is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from redis import Redis

from serving.lab.fingerprints import decode_fingerprint, glimpse_fingerprint, is_stale


class Measured(Protocol):
    """What was measured on a pool's engines, as selectors give it."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def pool(self) -> str:
        """On whose engines; empty: on another server's."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the engines were then."""


def stale_ids(found: Iterable[Measured], redis: Redis) -> frozenset[int]:
    """The numbers of those that are over and were measured on something else; none where nobody can tell. Each pool is
    looked at once. Blocking."""
    over = [each for each in found if each.is_over and each.pool]
    now: Mapping[str, Any] = {pool: glimpse_fingerprint(redis, pool) for pool in {each.pool for each in over}}
    return frozenset(each.id for each in over if is_stale(decode_fingerprint(each.fingerprint), now[each.pool]))
