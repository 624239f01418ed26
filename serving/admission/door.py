"""The door: leave to wait in a pool, and the quotas of tenants and keys, taken together in one call of Redis.

All processes share one count, and all times are Redis's own. Each permit weighs its sequences and the prompt tokens
that it waits with, and is charged to its account: one request, and the tokens that it may use at most. The charge is
settled once, when the request ends, to what was used; a request that never ran is as if it had not come. Until then the
permit is leased. A lease ends by itself when nobody renews it, so that the permits of a process that died come back,
and are settled to what the last renewal said. Where its process lives after all, it is charged again with its next
renewal, and settled to what it used when it ends.

What is lost at most:

- Redis loses its data: the last minute is forgotten and begins anew; what runs counts again with its next renewal, but
  not in the minute. Sums of the day and the month are taken from the ledger before the next request of the subject is
  let in, and once more a minute later: until then they lack what ended at other processes in the second before, not
  being stored yet. The same goes for a Redis that was started anew, which may have come back with older data.
- A process stalls for longer than a lease and a minute: what its requests had used by then counts twice, in Redis only.
- A process dies: what its requests used since the last renewal (3 seconds). The ledger lacks all that they used, and
  what ended in the process's last second, though Redis has it.
- A first quota is set: requests of the subject that run already are not counted while they run. Those that end within
  a minute count when that is over; those that take longer, for the day and the month, only where the ledger is asked
  again later, as after a change of the subject's quotas.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.admission import door_scripts as scripts
from serving.admission.accounts import Account, Charge, StaleAccount
from serving.admission.cancellation import honour_cancellation, to_its_end
from serving.admission.permits import Permit, PermitLost, Weight
from serving.admission.refusals import Asked, day_of, queue_full, quota_exceeded
from serving.admission.spent_before import SpentBefore
from serving.admission.standing import Standing, bounds_of, counted_charges
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables
from serving.outages import Outage

LEASE_SECONDS = 15.0
"""How long a permit lives without being renewed."""

WINDOW_SECONDS = 60.0
"""The minute of the quotas."""

RECONNECT_SECONDS = 2.0
"""The longest that a process goes without trying to reach Redis again."""

_ATTEMPTS = 3
_REMEMBERED_LOOK_UPS = 256
_SECONDS_A_DAY = 86_400
_FIRST_DAY = datetime.date(1970, 1, 1)

Tell = Callable[[Sequence[Standing]], None]
"""Who is told where the account's counted charges stand: see `standing.counted_charges`."""


class Books(Protocol):
    """The durable ledger."""

    def note(self, permit: Permit, spent: Spent) -> None:
        """A request ended that was scheduled. Returns at once; what is noted is stored soon."""


class Door:
    """Owns the tasks that ask the ledger, one a subject, and since when Redis does not answer; all else lives in Redis.
    Used from the event loop of `redis`.

    `enter` is all or nothing. What alone exceeds a bound is refused like what exceeds it together with others: the
    bound is what the operator allowed to wait, and no request is so special that it may wait beyond it.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        books: Books | None = None,
        spent_before: SpentBefore | None = None,
        lease_seconds: float = LEASE_SECONDS,
        window_seconds: float = WINDOW_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enter = redis.register_script(scripts.ENTER)
        self._settle = redis.register_script(scripts.SETTLE)
        self._renew = redis.register_script(scripts.RENEW)
        self._release = redis.register_script(scripts.RELEASE)
        self._close = redis.register_script(scripts.CLOSE)
        self._standing = redis.register_script(scripts.STANDING)
        self._seed = redis.register_script(scripts.SEED)
        self._books = books
        self._spent_before = spent_before
        self._look_ups: dict[tuple[Charge, int], asyncio.Task[None]] = {}
        self._num_asked = 0
        self._asked_when_looked_up: dict[tuple[Charge, int], int] = {}
        self._lease_ms = round(lease_seconds * 1000)
        self._window_ms = round(window_seconds * 1000)
        self._outage = Outage(usual_seconds=RECONNECT_SECONDS, monotonic=monotonic)

    async def enter(
        self,
        pool: PoolName,
        weights: Sequence[Weight],
        *,
        tunables: Tunables,
        account: Account | None = None,
        tell: Tell | None = None,
    ) -> tuple[Permit, ...]:
        """One permit for each of `weights`, or none at all, charged to `account`, or else to nobody.

        Raises `QueueFull` where they exceed `max_queue_requests` or `max_queue_tokens` together with all who wait,
        `QuotaExceeded` where they exceed a quota, `StaleAccount`, and `Unavailable` where Redis or, for a quota of a
        day or month, the ledger is out of reach.
        """
        payer = Account() if account is None else account
        charges = counted_charges(payer)
        ids = [uuid.uuid4().hex for _ in weights]
        epoch = "" if payer.epoch is None else f"={payer.epoch}"
        arguments: list[Any] = [epoch, self._lease_ms, self._window_ms]
        arguments += [tunables.max_queue_requests, tunables.max_queue_tokens, len(charges), *_bounds(charges)]
        arguments += [charge.version for charge in charges]
        for permit_id, weight in zip(ids, weights, strict=True):
            arguments += [permit_id, weight.sequences, weight.tokens, weight.charged_tokens]
        names = [*_queue_keys(pool), keys.admission_epoch(), *_charge_keys(charges)]
        try:
            answer = await self._enter_knowing(names, arguments, account=payer)
            now_seconds = self._check(answer, charges, weights=weights, tunables=tunables, tell=tell)
        except asyncio.CancelledError:
            # Redis may have taken them already; whoever was to hold them is gone.
            await to_its_end(self._take_back(pool, charges, ids))
            raise
        day = day_of(now_seconds)
        return tuple(Permit(name, pool, weight, payer, day) for name, weight in zip(ids, weights, strict=True))

    async def settle(self, permit: Permit, weight: Weight, *, tunables: Tunables, tell: Tell | None = None) -> Permit:
        """Put what is known after tokenising in place of what was estimated at `enter`.

        Raises `QueueFull` and `QuotaExceeded` where the difference does not fit: the permit then still holds what it
        held before, and the caller closes it. Raises `PermitLost` where its lease ended meanwhile: it is not brought
        back, and the request must not run on it.
        """
        charges = counted_charges(permit.account)
        arguments: list[Any] = [permit.permit_id, weight.sequences, weight.tokens, tunables.max_queue_tokens]
        arguments += [weight.charged_tokens, self._window_ms, len(charges), *_bounds(charges)]
        answer = await self._ask(self._settle, [*_queue_keys(permit.pool), *_charge_keys(charges)], arguments)
        self._check(
            answer,
            charges,
            weights=[weight],
            tunables=tunables,
            tell=tell,
            already_charged=permit.weight.charged_tokens,
        )
        return Permit(permit.permit_id, permit.pool, weight, permit.account, permit.day)

    async def renew(self, held: Sequence[tuple[Permit, Spent]]) -> None:
        """Extend the leases of permits that are still held, saying what each has used so far; also takes away those
        whose lease ended. What lost its lease meanwhile is charged again, but waits no more; what was closed stays so.
        """
        groups: dict[tuple[PoolName, tuple[str, ...]], list[Any]] = {}
        for permit, spent in held:
            place = (permit.pool, tuple(_charge_keys(counted_charges(permit.account))))
            groups.setdefault(place, []).extend(
                (permit.permit_id, permit.weight.charged_tokens, spent.tokens, _number_of(permit.day))
            )
        for (pool, names), arguments in groups.items():
            head = [self._lease_ms, self._window_ms, len(names) // 3]
            await self._renew(keys=[*_queue_keys(pool), *names], args=[*head, *arguments])

    async def release(self, permit: Permit) -> None:
        """Leave the waiting room, since the request runs; it goes on to use its account's quotas. Idempotent."""
        await self._release(keys=_queue_keys(permit.pool), args=[permit.permit_id])

    async def close(self, permit: Permit, spent: Spent, *, still_waits: bool = True) -> None:
        """Settle a request that ended to what it used; the ledger is told. To be called once a permit: called again,
        it changes nothing in Redis.

        `still_waits` says that `release` was never called. Where Redis is out of reach, its error is raised after the
        ledger was told, and the lease ends by itself.
        """
        charges = counted_charges(permit.account)
        try:
            if charges or still_waits:
                ended = (permit.permit_id, spent.tokens, _number_of(permit.day))
                await self._settle_all(permit.pool, charges, [ended], passing=False)
        finally:
            # Only now: what is in the ledger and still open would count twice if somebody looked it up in between.
            if spent.tokens and self._books is not None:
                self._books.note(permit, spent)

    async def give_back(self, permits: Sequence[Permit]) -> None:
        """Settle those that entered one pool together and are not to be used: as if they had not come.

        Idempotent. Where Redis is out of reach, their leases end by themselves.
        """
        first = permits[0]
        await self._take_back(first.pool, counted_charges(first.account), [permit.permit_id for permit in permits])

    async def standing(self, account: Account) -> list[Standing]:
        """Where the account's counted charges stand now. Raises Redis's errors."""
        charges = counted_charges(account)
        if not charges:
            return []
        answer = await self._standing(keys=_charge_keys(charges), args=[self._window_ms])
        return _standings(answer)

    async def _take_back(self, pool: PoolName, charges: Sequence[Charge], permit_ids: Iterable[str]) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._settle_all(pool, charges, [(permit_id, 0, 0) for permit_id in permit_ids], passing=True)

    async def _settle_all(
        self, pool: PoolName, charges: Sequence[Charge], ended: Iterable[tuple[str, int, int]], *, passing: bool
    ) -> None:
        arguments: list[Any] = [self._window_ms, int(passing), len(charges)]
        for permit_id, used, day in ended:
            arguments += [permit_id, used, day]
        await self._close(keys=[*_queue_keys(pool), *_charge_keys(charges)], args=arguments)

    async def _enter_knowing(self, names: list[str], arguments: list[Any], *, account: Account) -> Any:
        """The answer to `enter`, after what Redis does not know of the day and month was looked up."""
        charges = counted_charges(account)
        for _ in range(_ATTEMPTS):
            self._num_asked += 1
            asked = self._num_asked
            answer = await self._ask(self._enter, names, arguments)
            if answer[0] != b"unknown":
                return answer
            for number in answer[1]:
                await self._look_up(charges[number - 1], now_seconds=answer[3], asked=asked)
        raise Unavailable("what was used before cannot be told")

    async def _look_up(self, charge: Charge, *, now_seconds: int, asked: int) -> None:
        """Have Redis know the charge's day and month; all who ask at the same time share one look at the ledger, also
        those who hear of what Redis lacked only after it was told."""
        place = (charge, now_seconds // _SECONDS_A_DAY)
        if asked <= self._asked_when_looked_up.get(place, 0):
            return
        running = self._look_ups.get(place)
        if running is None:
            running = asyncio.create_task(self._seed_from_ledger(charge, now_seconds=now_seconds))
            self._look_ups[place] = running
            running.add_done_callback(lambda task: self._forget_look_up(place, task))
        await asyncio.shield(running)

    def _forget_look_up(self, place: tuple[Charge, int], task: asyncio.Task[None]) -> None:
        del self._look_ups[place]
        # Whoever waited for it may be gone: then nobody else asks how it ended.
        if not task.cancelled() and task.exception() is None:
            self._note_looked_up(place)

    def _note_looked_up(self, place: tuple[Charge, int]) -> None:
        self._asked_when_looked_up.pop(place, None)
        self._asked_when_looked_up[place] = self._num_asked
        if len(self._asked_when_looked_up) > _REMEMBERED_LOOK_UPS:
            del self._asked_when_looked_up[next(iter(self._asked_when_looked_up))]

    async def _seed_from_ledger(self, charge: Charge, *, now_seconds: int) -> None:
        if self._spent_before is None:
            raise Unavailable("what was used before cannot be told")
        of_day, of_month = await self._spent_before.look_up(charge, today=day_of(now_seconds))
        arguments = [self._window_ms, now_seconds // _SECONDS_A_DAY, of_day, of_month, charge.version]
        await self._ask(self._seed, _charge_keys([charge]), arguments)

    async def _ask(self, script: Callable[..., Awaitable[Any]], names: list[str], arguments: list[Any]) -> Any:
        try:
            answer = await script(keys=names, args=arguments)
        except (RedisError, OSError) as error:
            self._outage.note_silence()
            retry_after_seconds = self._outage.retry_after_seconds
            raise Unavailable("the queue cannot be reached", retry_after_seconds=retry_after_seconds) from error
        self._outage.note_answer()
        honour_cancellation()
        return answer

    def _check(
        self,
        answer: Any,
        charges: Sequence[Charge],
        *,
        weights: Sequence[Weight],
        tunables: Tunables,
        tell: Tell | None,
        already_charged: int = 0,
    ) -> int:
        """Raise what an answer says; the time in seconds where it lets in."""
        word, detail, standings, now_seconds = answer
        if word == b"stale":
            raise StaleAccount
        if word == b"lost":
            raise PermitLost
        if tell is not None:
            tell(_standings(standings))
        if word == b"queue":
            raise queue_full(detail, weights=weights, tunables=tunables)
        if word == b"quota":
            number, *found = detail
            asked = Asked(len(weights), sum(weight.charged_tokens for weight in weights), already_charged)
            raise quota_exceeded(charges[number - 1], found, asked=asked)
        return int(now_seconds)


def _queue_keys(pool: PoolName) -> list[str]:
    return [keys.permits(pool), keys.permit_weights(pool)]


def _charge_keys(charges: Iterable[Charge]) -> list[str]:
    makers = (keys.quota_book, keys.quota_charges, keys.quota_leases)
    return [make(charge.subject) for charge in charges for make in makers]


def _bounds(charges: Iterable[Charge]) -> list[int | str]:
    return ["" if bound is None else bound for charge in charges for bound in bounds_of(charge)]


def _number_of(day: datetime.date) -> int:
    return (day - _FIRST_DAY).days


def _standings(answer: Sequence[Sequence[int]]) -> list[Standing]:
    return [Standing(requests, tokens, reset_ms / 1000) for requests, tokens, reset_ms in answer]
