"""The door's scripts in a real Valkey, beside the same thing in plain Python: whatever comes in whatever order.

Time needs no waiting: a door whose minute or whose lease is no time at all makes a minute pass, or an owner die.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis.asyncio import Redis

from serving.admission.accounts import Account, Charge, StaleAccount
from serving.admission.door import Door
from serving.admission.permits import Permit, PermitLost, Weight
from serving.admission.spent_before import SpentBefore
from serving.admission.standing import counted_charges
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.errors import QueueFull, QuotaExceeded
from serving.contracts.ids import PoolName
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from tests.admission.quota_model import DoorModel, Subject, Verdict
from tests.engine.core.machines import run_machine

pytestmark = pytest.mark.heavy

POOL = PoolName("default")
BOUNDS = Tunables(max_queue_requests=16, max_queue_tokens=500)
TENANT, KEYS = "tenant:1", ("key:aa", "key:bb")

_WEIGHTS = st.builds(
    lambda sequences, tokens, longest: Weight(sequences, sequences * tokens, tokens + sequences * longest),
    st.integers(1, 2),
    st.integers(1, 40),
    st.integers(1, 40),
)


def _maybe(lowest: int, highest: int) -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), st.integers(lowest, highest))


_QUOTAS = st.builds(
    Quotas,
    requests_per_minute=_maybe(3, 15),
    tokens_per_minute=_maybe(60, 900),
    tokens_per_day=_maybe(200, 3000),
    tokens_per_month=_maybe(200, 4000),
    max_concurrent_requests=_maybe(2, 8),
)


class QuotaMachine(RuleBasedStateMachine):
    """Owns a Valkey's data, an event loop, and a model of what the data should be."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis = Redis.from_url(self.url)
        self.model = DoorModel("epoch-0")
        self.num_epochs = 0
        self.versions = dict.fromkeys((TENANT, *KEYS), 0)
        before = SpentBefore(self._read_ledger)
        self.door = Door(self.redis, books=self, spent_before=before)
        self.door_of_the_dead = Door(self.redis, books=self, spent_before=before, lease_seconds=0)
        self.door_a_minute_later = Door(self.redis, window_seconds=0)
        self.quotas = {TENANT: Quotas(), **dict.fromkeys(KEYS, Quotas())}
        self.accounts: list[Account] = []
        self.held: dict[str, Permit] = {}
        self.ended: list[Permit] = []

    def note(self, permit: Permit, spent: Spent) -> None:
        for subject in (TENANT, f"key:{permit.account.key_prefix}"):
            self.model.subjects.setdefault(subject, Subject()).ledger += spent.tokens

    async def _read_ledger(self, subject: str, _since: datetime.date) -> int:
        return self.model.subjects[subject].ledger

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    # --- tenants ---

    @initialize(tenant=_QUOTAS, key=_QUOTAS)
    def begin(self, tenant: Quotas, key: Quotas) -> None:
        self.run(self.redis.flushall())
        self._change({TENANT: tenant, KEYS[0]: key})

    @rule(subject=st.sampled_from([TENANT, *KEYS]), quotas=_QUOTAS)
    def change_quotas(self, subject: str, quotas: Quotas) -> None:
        self._change({subject: quotas})

    @rule(subject=st.sampled_from([TENANT, *KEYS]))
    def take_quotas_away(self, subject: str) -> None:
        self._change({subject: Quotas()})

    @rule(tokens=st.integers(1, 60))
    def use_tokens_while_nothing_is_bounded(self, tokens: int) -> None:
        """They are in the ledger alone, and are to count as soon as something is bounded again."""
        before = dict(self.quotas)
        self._change(dict.fromkeys(before, Quotas()))
        weight = Weight(0, 0, tokens)
        (permit,) = self.run(self.door.enter(POOL, [weight], tunables=BOUNDS, account=self.accounts[0]))
        self._close(permit, Spent(tokens))
        self._change(before)

    def _change(self, quotas: dict[str, Quotas]) -> None:
        self.quotas |= quotas
        for subject in quotas:
            self.versions[subject] += 1
        self.num_epochs += 1
        self.model.epoch = f"epoch-{self.num_epochs}"
        self.run(self.redis.set(keys.admission_epoch(), self.model.epoch))
        self.accounts = [
            Account(
                charges=tuple(Charge(name, self.quotas[name], self.versions[name]) for name in (TENANT, key)),
                epoch=self.model.epoch,
                tenant_id=1,
                key_prefix=key.removeprefix("key:"),
            )
            for key in KEYS
        ]

    # --- requests ---

    @rule(which=st.integers(0, 1), requests=st.lists(st.lists(_WEIGHTS, min_size=1, max_size=3), max_size=4))
    def enter_one_after_another(self, which: int, requests: list[list[Weight]]) -> None:
        for weights in requests:
            self._enter(self.accounts[which], weights)

    @rule(which=st.integers(0, 1), weight=_WEIGHTS, tokens=st.integers(1, 150), later=st.booleans())
    def enter_and_settle(self, which: int, weight: Weight, tokens: int, later: bool) -> None:
        permits = self._enter(self.accounts[which], [weight])
        if later:
            self.let_a_minute_pass()
            self._enter(self.accounts[which], [Weight(1, 1, 100)])
        for permit in permits:
            self._settle(permit, tokens)

    def _enter(self, account: Account, weights: list[Weight]) -> tuple[Permit, ...]:
        expected = self._judge(account, weights)
        permits: tuple[Permit, ...] = ()
        with _verdict() as found:
            permits = self.run(self.door.enter(POOL, weights, tunables=BOUNDS, account=account))
        assert found == [_as_told(expected)]
        for permit in permits:
            self.model.enter(account, permit.permit_id, permit.weight)
            self.held[permit.permit_id] = permit
        return permits

    @rule(which=st.integers(0, 1), weight=_WEIGHTS)
    def enter_on_an_account_read_before_a_change(self, which: int, weight: Weight) -> None:
        account = self.accounts[which]
        self._change({})
        with _verdict() as found:
            self.run(self.door.enter(POOL, [weight], tunables=BOUNDS, account=account))
        assert found == ["stale"]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(1, 150))
    def settle(self, data: st.DataObject, tokens: int) -> None:
        self._settle(self._pick(data), tokens)

    def _settle(self, permit: Permit, tokens: int) -> None:
        """The prompt turns out to have so many tokens."""
        before = permit.weight
        more = tokens - before.tokens // before.sequences
        weight = Weight(before.sequences, before.sequences * tokens, max(1, before.charged_tokens + more))
        expected = self.model.judge_settlement(permit.account, permit.permit_id, weight, tokens=BOUNDS.max_queue_tokens)
        with _verdict() as found:
            self.held[permit.permit_id] = self.run(self.door.settle(permit, weight, tunables=BOUNDS))
        assert found == [_as_told(expected)]
        if expected == "in":
            self.model.settle(permit.account, permit.permit_id, weight)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave_the_waiting_room(self, data: st.DataObject) -> None:
        permit = self._pick(data)
        self.run(self.door.release(permit))
        self.model.waiting.pop(permit.permit_id, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        told = [(permit, self._draw_spent(data, permit)) for permit in self.held.values()]
        self.run(self.door.renew(told))
        for permit, spent in told:
            for subject in self._subjects_of(permit):
                subject.hold(permit.permit_id, permit.weight.charged_tokens, spent.tokens)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        permit = self._pick(data)
        spent = self._draw_spent(data, permit)
        self._close(permit, spent)
        del self.held[permit.permit_id]
        self.ended.append(permit)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end_without_having_run(self, data: st.DataObject) -> None:
        permit = self._pick(data)
        self._close(permit, Spent())
        del self.held[permit.permit_id]

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), tokens=st.integers(0, 60))
    def end_once_more(self, data: st.DataObject, tokens: int) -> None:
        permit = self.ended[data.draw(st.integers(0, len(self.ended) - 1))]
        self._close(permit, Spent(tokens))

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), tokens=st.integers(0, 60))
    def renew_what_has_ended_within_the_minute(self, data: st.DataObject, tokens: int) -> None:
        permit = self.ended[data.draw(st.integers(0, len(self.ended) - 1))]
        if all(permit.permit_id in subject.entries for subject in self._subjects_of(permit)):
            self.run(self.door.renew([(permit, Spent(tokens))]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose_the_lease(self, data: st.DataObject) -> None:
        """The last thing that its owner said was how much was used; it is dead, or slow and comes back."""
        permit = self._pick(data)
        spent = self._draw_spent(data, permit)
        self.run(self.door_of_the_dead.renew([(permit, spent)]))
        for subject in self._subjects_of(permit):
            subject.hold(permit.permit_id, permit.weight.charged_tokens, spent.tokens)
        self.model.lose_lease(permit.account, permit.permit_id)

    # --- the world ---

    @rule()
    def let_a_minute_pass(self) -> None:
        bounded = Quotas(requests_per_minute=1)
        everybody = Account(charges=tuple(Charge(subject, bounded) for subject in (TENANT, *KEYS)))
        self.run(self.door_a_minute_later.standing(everybody))
        for subject in self.model.subjects.values():
            subject.let_a_minute_pass()

    @precondition(lambda self: len(self.held) > 2)  # or else there is nothing to lose, most of the time
    @rule()
    def lose_what_redis_holds(self) -> None:
        self.run(self.redis.flushall())
        self.model.forget()
        self._change({})

    # --- what holds always ---

    @invariant()
    def redis_and_the_model_agree(self) -> None:
        stored = self.run(self.redis.hmget(keys.permit_weights(POOL), "total:requests", "total:tokens"))
        assert tuple(int(value or 0) for value in stored) == self.model.queued()
        for name, subject in self.model.subjects.items():
            self._compare(name, subject)

    def _compare(self, name: str, subject: Subject) -> None:
        book, charges, leases = self.run(self._read(name))
        sums = [int(book.get(field, 0)) for field in (b"requests", b"tokens", b"open")]
        assert sums == [subject.requests, subject.tokens, subject.open]
        assert charges == {permit_id for permit_id, entry in subject.entries.items() if entry.in_window}
        assert leases == {permit_id for permit_id, entry in subject.entries.items() if entry.is_open}
        in_book = {
            field.decode(): [int(part) for part in value.split(b":")][:2]
            for field, value in book.items()
            if value.count(b":") == 3
        }
        assert in_book == {name: [entry.amount, entry.used] for name, entry in _as_stored(subject).items()}
        if subject.calendar is not None:
            assert int(book[b"day:tokens"]) == int(book[b"month:tokens"]) == subject.calendar

    async def _read(self, name: str) -> tuple[dict[bytes, bytes], set[str], set[str]]:
        async with self.redis.pipeline() as pipeline:
            pipeline.hgetall(keys.quota_book(name))
            pipeline.zrange(keys.quota_charges(name), 0, -1)
            pipeline.zrangebyscore(keys.quota_leases(name), "(0", "+inf")
            book, charges, leases = await pipeline.execute()
        return book, {name.decode() for name in charges}, {name.decode() for name in leases}

    def teardown(self) -> None:
        """Everything that ends gives everything back but what was used."""
        for permit in list(self.held.values()):
            self._close(permit, Spent())
        self.redis_and_the_model_agree()
        assert all(subject.open == 0 for subject in self.model.subjects.values())
        assert self.model.queued() == (0, 0)
        self.run(self.redis.aclose())
        self.runner.close()

    def _judge(self, account: Account, weights: list[Weight]) -> Verdict:
        return self.model.judge_entry(
            account, weights, sequences=BOUNDS.max_queue_requests, tokens=BOUNDS.max_queue_tokens
        )

    def _close(self, permit: Permit, spent: Spent) -> None:
        self.run(self.door.close(permit, spent))
        self.model.close(permit.account, permit.permit_id, spent.tokens)

    def _subjects_of(self, permit: Permit) -> list[Subject]:
        return [self.model.subject(charge) for charge in counted_charges(permit.account)]

    def _pick(self, data: st.DataObject) -> Permit:
        # By its place: the ids are random, and another course's are others.
        return list(self.held.values())[data.draw(st.integers(0, len(self.held) - 1))]

    def _draw_spent(self, data: st.DataObject, permit: Permit) -> Spent:
        used = data.draw(st.integers(0, permit.weight.charged_tokens))
        prompt_tokens = min(used, permit.weight.tokens // permit.weight.sequences)
        return Spent(prompt_tokens, used - prompt_tokens)


def _as_stored(subject: Subject) -> dict[str, Any]:
    """What ended is stored with what it used as its amount, and that it ended in its place."""
    return {
        name: dataclasses.replace(entry, used=-1) if entry.has_ended else entry
        for name, entry in subject.entries.items()
    }


@contextlib.contextmanager
def _verdict() -> Iterator[list[str]]:
    """What the door said in the block, in one word."""
    said: list[str] = []
    try:
        yield said
    except StaleAccount:
        said.append("stale")
    except PermitLost:
        said.append("lost")
    except QueueFull:
        said.append("queue")
    except QuotaExceeded as error:
        said.append(error.message.split(" is ")[0] if error.retry_after_seconds >= 1 else "try again at once")
    else:
        said.append("in")


def _as_told(verdict: Verdict) -> str:
    if isinstance(verdict, str):
        return verdict
    subject, quota = verdict
    return f"the {subject.partition(':')[0]}'s quota {quota}"


def _machine(valkey: str) -> type[QuotaMachine]:
    return type("QuotaMachine", (QuotaMachine,), {"url": valkey})


def test_any_course_of_events_counts_as_the_model_does(valkey: str) -> None:
    assert run_machine(_machine(valkey), max_examples=50, num_steps=40) > 1000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_any_long_course_of_events_counts_as_the_model_does(valkey: str) -> None:
    assert run_machine(_machine(valkey), max_examples=1000, num_steps=60) > 30_000
