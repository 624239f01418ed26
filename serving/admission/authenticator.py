"""Whose key a request bears, mostly without asking the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from django.db import Error as DatabaseError
from redis.asyncio import Redis

from serving.admission.accounts import Account
from serving.admission.cancellation import to_its_end
from serving.admission.epochs import read_epoch
from serving.admission.key_look_ups import KeyLookUps
from serving.admission.key_uses import KeyUses
from serving.admission.principals import (
    KnownKey,
    Principal,
    is_over,
    presented_key,
    principal_if_it_opens,
    read_known_key,
)
from serving.contracts.errors import RETRY_SECONDS, InvalidKey, Unavailable
from serving.outages import Outage
from serving.threads import in_thread

LIFE_SECONDS = 10.0
"""How long a key is remembered: the longest that one which was revoked while Redis was out of reach goes on."""

_MAX_KEYS = 10_000

V = TypeVar("V")


class Authenticator:
    """Owns what this process remembers of keys, each bound to the epoch that it was read under, and their last uses; on
    the event loop of `redis`.

    A key is remembered only while its epoch lasts, so that what is revoked, disabled or lowered counts at once, and so
    is that a prefix opens nothing. While Redis is out of reach, every key is read from the database anew, and nothing
    is remembered; while the database is, keys go on whose epoch lasts. Keys that were never seen to open are looked
    up a few at a time, the others at once: whoever makes keys up holds up strangers alone.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        uses: KeyUses | None = None,
        look_ups: KeyLookUps | None = None,
        life_seconds: float = LIFE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._uses = KeyUses() if uses is None else uses
        self._look_ups = look_ups or KeyLookUps(life_seconds=life_seconds, monotonic=monotonic)
        self._outage = Outage(usual_seconds=RETRY_SECONDS, monotonic=monotonic)
        self._life_seconds = life_seconds
        self._monotonic = monotonic
        self._remembered: dict[str, tuple[KnownKey, float]] = {}
        self._have_opened: dict[str, None] = {}

    async def authenticate(self, authorization: str | None, *, at_the_door: bool = False) -> Principal:
        """Whose key an `Authorization` header bears; raises `InvalidKey`, and `Unavailable` where none can tell.

        `at_the_door` is for requests that go on to the door with the principal's account: the door itself refuses an
        account whose epoch is over, so that nobody else needs to ask Redis for it.
        """
        presented = presented_key(authorization)
        known = self._recall(presented.prefix)
        if known is None or not at_the_door:
            known = await self._known_now(presented.prefix)
        principal = principal_if_it_opens(presented, known)
        self._uses.note(principal.key_prefix)
        return principal

    async def account_of(self, prefix: str) -> Account:
        """The account of a key that was checked before, as it is now; raises `InvalidKey`."""
        known = await self._known_now(prefix)
        if known is None or is_over(known):
            raise InvalidKey("the API key has expired or was revoked")
        return known.principal.account

    async def close(self) -> None:
        """Return when the last uses are written down."""
        await self._uses.close()

    async def _known_now(self, prefix: str) -> KnownKey | None:
        epoch = await read_epoch(self._redis)
        if epoch is None:
            # What changes meanwhile may not be told to Redis, which may come back with the epoch that it had.
            self._remembered.clear()
        known = self._recall_under(epoch, prefix)
        if known is not None:
            return known
        if self._look_ups.opens_nothing(prefix, epoch=epoch):
            return None
        try:
            return await self._look_up(prefix, epoch)
        except DatabaseError as error:
            self._outage.note_silence()
            # Nothing changed since it was read, if Redis still has its epoch: then age is no reason to refuse it.
            grown_old = self._remembered.get(prefix)
            if epoch is not None and grown_old is not None and grown_old[0].principal.account.epoch == epoch:
                return grown_old[0]
            raise Unavailable(
                "keys cannot be looked up: the database does not answer",
                retry_after_seconds=self._outage.retry_after_seconds,
            ) from error

    def _recall(self, prefix: str) -> KnownKey | None:
        remembered = self._remembered.get(prefix)
        if remembered is None or self._monotonic() - remembered[1] >= self._life_seconds:
            return None
        return remembered[0]

    def _recall_under(self, epoch: str | None, prefix: str) -> KnownKey | None:
        known = self._recall(prefix)
        return known if known is not None and epoch is not None and known.principal.account.epoch == epoch else None

    async def _look_up(self, prefix: str, epoch: str | None) -> KnownKey | None:
        if prefix in self._have_opened:
            return await self._read(prefix, epoch)
        async with self._look_ups.turn():
            # Who came before with the same key may have found out.
            if self._look_ups.opens_nothing(prefix, epoch=epoch):
                return None
            # Who leaves gives up the turn once the database has answered: its thread does not end before.
            return self._recall_under(epoch, prefix) or await to_its_end(self._read(prefix, epoch))

    async def _read(self, prefix: str, epoch: str | None) -> KnownKey | None:
        read_at = self._monotonic()
        known = await in_thread(read_known_key, prefix, epoch=epoch)
        self._outage.note_answer()
        self._remembered.pop(prefix, None)
        self._have_opened.pop(prefix, None)
        if known is None:
            if epoch is not None:
                self._look_ups.note_nothing(prefix, epoch=epoch)
            return None
        _put(self._have_opened, prefix, None)
        if epoch is not None:
            _put(self._remembered, prefix, (known, read_at))
        return known


def _put(bounded: dict[str, V], prefix: str, value: V) -> None:
    """As the newest; the oldest makes room."""
    while len(bounded) >= _MAX_KEYS:
        del bounded[next(iter(bounded))]
    bounded[prefix] = value
