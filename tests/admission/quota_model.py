"""What the door's scripts are to do, in plain Python: one waiting room, and what each subject used."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from serving.admission.accounts import Account, Charge
from serving.admission.permits import Weight
from serving.admission.standing import COUNTED, counted_charges
from serving.contracts.quotas import Quotas

Verdict = Literal["in", "stale", "queue", "lost"] | tuple[str, str]
"""Let in, or why not: for a quota, the subject and the quota's name."""


@dataclasses.dataclass
class Entry:
    """One permit in a subject's book: what it is counted with, and what it was last known to have used. What neither is
    open nor has ended has lost its lease."""

    amount: int
    used: int = 0
    in_window: bool = True
    is_open: bool = True
    has_ended: bool = False


class Subject:
    """Owns what a tenant or a key used. `calendar` is the sum of the day and of the month, which is one here; None
    where it is not known. `ledger` is what the ledger has of both."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.calendar: int | None = None
        self.seeded: int | None = None
        self.ledger = 0

    @property
    def requests(self) -> int:
        return sum(entry.in_window for entry in self.entries.values())

    @property
    def tokens(self) -> int:
        return sum(entry.amount for entry in self.entries.values() if entry.in_window)

    @property
    def open(self) -> int:
        return sum(entry.is_open for entry in self.entries.values())

    def add(self, permit_id: str, amount: int) -> None:
        self.entries[permit_id] = Entry(amount)
        self._count(amount)

    def seed(self, version: int) -> None:
        """Learn the sums from the ledger, to which what is open comes."""
        is_open = sum(entry.amount for entry in self.entries.values() if entry.is_open)
        self.calendar = max(self.calendar or 0, self.ledger + is_open)
        self.seeded = version

    def amount_of(self, permit_id: str) -> int | None:
        """What an open permit is counted with."""
        entry = self.entries.get(permit_id)
        return entry.amount if entry is not None and entry.is_open else None

    def recharge(self, permit_id: str, amount: int) -> None:
        self._recount(self.entries[permit_id], amount)

    def hold(self, permit_id: str, amount: int, used: int) -> None:
        """Still held by its owner, who may have been thought dead."""
        entry = self._entry_of(permit_id)
        if not entry.has_ended:
            entry.is_open = True
            self._recount(entry, amount)
            entry.used = used

    def finish(self, permit_id: str, used: int) -> None:
        entry = self._entry_of(permit_id)
        if not entry.has_ended:
            self._stop(entry, used)
            entry.has_ended = True

    def lose_lease(self, permit_id: str) -> None:
        entry = self.entries[permit_id]
        if entry.is_open:
            self._stop(entry, entry.used)

    def let_a_minute_pass(self) -> None:
        self.entries = {name: entry for name, entry in self.entries.items() if entry.is_open}
        for entry in self.entries.values():
            entry.in_window = False

    def forget(self) -> None:
        """Redis lost its data; the ledger did not."""
        self.entries, self.calendar, self.seeded = {}, None, None

    def first_exceeded(self, quotas: Quotas, *, requests: int, tokens: int, of_window: bool = True) -> str | None:
        """The first quota that so much more would exceed, in the order in which they are looked at."""
        used = (self.requests, self.tokens, self.calendar or 0, self.calendar or 0, self.open)
        more = (requests, tokens if of_window else 0, tokens, tokens, requests)
        for name, before, extra in zip(COUNTED, used, more, strict=True):
            bound = getattr(quotas, name)
            if bound is not None and extra > 0 and before + extra > bound:
                return name
        return None

    def _entry_of(self, permit_id: str) -> Entry:
        return self.entries.setdefault(permit_id, Entry(0, in_window=False, is_open=False))

    def _stop(self, entry: Entry, used: int) -> None:
        self._recount(entry, used)
        entry.is_open = False
        entry.in_window &= used > 0

    def _recount(self, entry: Entry, amount: int) -> None:
        self._count(amount - entry.amount)
        entry.amount = amount

    def _count(self, tokens: int) -> None:
        if self.calendar is not None:
            self.calendar += tokens


class DoorModel:
    """Owns the waiting room and all subjects, and the epoch in force."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.waiting: dict[str, tuple[int, int]] = {}
        self.subjects: dict[str, Subject] = {}

    def subject(self, charge: Charge) -> Subject:
        return self.subjects.setdefault(charge.subject, Subject())

    def judge_entry(self, account: Account, weights: Sequence[Weight], *, sequences: int, tokens: int) -> Verdict:
        """What is to become of a request; `sequences` and `tokens` are the waiting room's bounds."""
        if account.epoch != self.epoch:
            return "stale"
        charges = counted_charges(account)
        for charge in charges:
            self._look_up(charge)
        if self._exceeds_queue(sum(w.sequences for w in weights), sum(w.tokens for w in weights), sequences, tokens):
            return "queue"
        asked = sum(weight.charged_tokens for weight in weights)
        for charge in charges:
            name = self.subject(charge).first_exceeded(charge.quotas, requests=len(weights), tokens=asked)
            if name is not None:
                return charge.subject, name
        return "in"

    def enter(self, account: Account, permit_id: str, weight: Weight) -> None:
        self.waiting[permit_id] = (weight.sequences, weight.tokens)
        for charge in counted_charges(account):
            self.subject(charge).add(permit_id, weight.charged_tokens)

    def judge_settlement(self, account: Account, permit_id: str, weight: Weight, *, tokens: int) -> Verdict:
        """What is to become of a permit that turns out to weigh so much."""
        waits = self.waiting.get(permit_id)
        held = [self.subject(charge).amount_of(permit_id) for charge in counted_charges(account)]
        if waits is None or None in held:
            return "lost"
        more_waiting = weight.tokens - waits[1]
        if more_waiting > 0 and self.queued()[1] + more_waiting > tokens:
            return "queue"
        for charge in counted_charges(account):
            subject = self.subject(charge)
            name = subject.first_exceeded(
                charge.quotas,
                requests=0,
                tokens=weight.charged_tokens - subject.entries[permit_id].amount,
                of_window=subject.entries[permit_id].in_window,
            )
            if name is not None:
                return charge.subject, name
        return "in"

    def settle(self, account: Account, permit_id: str, weight: Weight) -> None:
        self.waiting[permit_id] = (weight.sequences, weight.tokens)
        for charge in counted_charges(account):
            self.subject(charge).recharge(permit_id, weight.charged_tokens)

    def close(self, account: Account, permit_id: str, used: int) -> None:
        self.waiting.pop(permit_id, None)
        for charge in counted_charges(account):
            self.subject(charge).finish(permit_id, used)

    def lose_lease(self, account: Account, permit_id: str) -> None:
        self.waiting.pop(permit_id, None)
        for charge in counted_charges(account):
            self.subject(charge).lose_lease(permit_id)

    def forget(self) -> None:
        self.waiting.clear()
        for subject in self.subjects.values():
            subject.forget()

    def queued(self) -> tuple[int, int]:
        """Sequences and tokens that wait."""
        return sum(waits[0] for waits in self.waiting.values()), sum(waits[1] for waits in self.waiting.values())

    def _exceeds_queue(self, sequences: int, tokens: int, max_sequences: int, max_tokens: int) -> bool:
        queued = self.queued()
        return queued[0] + sequences > max_sequences or queued[1] + tokens > max_tokens

    def _look_up(self, charge: Charge) -> None:
        subject, quotas = self.subject(charge), charge.quotas
        if quotas.tokens_per_day is None and quotas.tokens_per_month is None:
            return
        if subject.calendar is None or subject.seeded != charge.version:
            subject.seed(charge.version)
