"""What the pages about tenants show, from what was read: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dashboard.presenters import ChangeRow
from serving.contracts.quotas import Quotas, quota_meanings, quota_names

_NEAR, _FULL = 80, 100
"""Percent of a quota from which on it is said to be nearly, and to be wholly used."""

_USES = {
    "requests_per_minute": ("requests", "{} in the last 60 seconds"),
    "tokens_per_minute": ("tokens", "{} in the last 60 seconds"),
    "tokens_per_day": ("tokens_of_day", "{} today"),
    "tokens_per_month": ("tokens_of_month", "{} this month"),
    "max_concurrent_requests": ("open", "{} waiting or running"),
}
"""Which figure tells of a quota, and how it is said."""


class Use(Protocol):
    """What the door counts of someone now."""

    @property
    def requests(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def open(self) -> int: ...

    @property
    def tokens_of_day(self) -> int | None: ...

    @property
    def tokens_of_month(self) -> int | None: ...


class StoredEvent(Protocol):
    """An event of the audit as the database has it."""

    at: datetime.datetime
    actor: str
    action: str
    subject_kind: str
    subject: str
    changes: dict[str, Any]
    reason: str


class StoredQuotas(Protocol):
    """A version of quotas as the database has it."""

    number: int
    changes: dict[str, Any]
    reason: str
    author: str
    created_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuotaBar:
    """One quota and what is used of it. `percent` is None where there is nothing to draw, `width` is at most 100;
    `level` is `""`, `near` or `full`. `brief` says what `words` do where it is plain what is counted; what bounds a
    single request is not counted."""

    name: str
    label: str
    help: str
    bound: str
    words: str
    brief: str
    is_counted: bool
    percent: int | None
    width: str
    level: str


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaField:
    """One quota in a form: what stands in its field, and what is wrong with that."""

    bar: QuotaBar
    text: str
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaVersionRow:
    """One version of quotas in the list."""

    number: int
    created_at: datetime.datetime
    author: str
    changes: tuple[ChangeRow, ...]
    reason: str
    is_in_force: bool


@dataclasses.dataclass(frozen=True, slots=True)
class AuditRow:
    """One event of a tenant's audit."""

    created_at: datetime.datetime
    author: str
    action: str
    key_prefix: str
    changes: tuple[ChangeRow, ...]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolChoice:
    """A pool that a tenant may be given. `rank` is 0 where it is not, else its place; `exists` is false where a rule
    outlived its pool."""

    name: str
    rank: int
    exists: bool = True


def present_bars(quotas: Quotas, use: Use | None, *, of_day: int, of_month: int) -> tuple[QuotaBar, ...]:
    """A bar a quota. `use` is what the door counts, None where it is not known; `of_day` and `of_month` are the tokens
    that the ledger has, of which the door may know more."""
    meanings, bounds = quota_meanings(), quotas.as_dict()
    figures = {} if use is None else {name: getattr(use, field) for name, (field, _) in _USES.items()}
    figures["tokens_per_day"] = max(of_day, figures.get("tokens_per_day") or 0)
    figures["tokens_per_month"] = max(of_month, figures.get("tokens_per_month") or 0)
    return tuple(
        present_bar(name, bound=bounds[name], used=figures.get(name), meaning=meanings[name]) for name in quota_names()
    )


def present_bar(name: str, *, bound: int | None, used: int | None, meaning: str = "") -> QuotaBar:
    """A quota's bar; `used` is None where nothing is known of it."""
    percent = None if bound is None or used is None else 100 * used // bound
    return QuotaBar(
        name=name,
        label=quota_label(name),
        help=meaning,
        bound="" if bound is None else f"{bound:,}",
        words=_words(name, bound=bound, used=used, percent=percent),
        brief=_brief(bound=bound, used=used, percent=percent),
        is_counted=name in _USES,
        percent=percent,
        width="0" if not bound or used is None else f"{min(100.0, 100 * used / bound):.4g}",
        level="" if percent is None or percent < _NEAR else "near" if percent < _FULL else "full",
    )


def present_fields(
    bars: Iterable[QuotaBar], typed: Mapping[str, str], errors: Mapping[str, str]
) -> tuple[QuotaField, ...]:
    """A field a quota."""
    return tuple(QuotaField(bar, typed.get(bar.name, ""), errors.get(bar.name, "")) for bar in bars)


def present_empty_fields(typed: Mapping[str, str], errors: Mapping[str, str]) -> tuple[QuotaField, ...]:
    """A field a quota of someone who is not there yet, and uses nothing."""
    return present_fields(present_bars(Quotas(), None, of_day=0, of_month=0), typed, errors)


def quota_label(name: str) -> str:
    """A quota's name as people write it."""
    return name.replace("_", " ").capitalize()


def present_versions(versions: Iterable[StoredQuotas], *, in_force: int) -> tuple[QuotaVersionRow, ...]:
    """A row a version of quotas; `in_force` is the newest one's number."""
    return tuple(
        QuotaVersionRow(
            number=version.number,
            created_at=version.created_at,
            author=version.author,
            changes=present_changes(version.changes),
            reason=version.reason,
            is_in_force=version.number == in_force,
        )
        for version in versions
    )


def present_audit(events: Iterable[StoredEvent]) -> tuple[AuditRow, ...]:
    """A row an event. Of what was made only the new values are told: there were none before."""
    return tuple(
        AuditRow(
            created_at=event.at,
            author=event.actor,
            action=event.action,
            key_prefix=event.subject if event.subject_kind == "key" else "",
            changes=present_changes(event.changes, is_new=event.action.endswith(" made")),
            reason=event.reason,
        )
        for event in events
    )


def present_changes(changes: Mapping[str, Any], *, is_new: bool = False) -> tuple[ChangeRow, ...]:
    """What a change did to each field; `old` is empty where there was nothing before."""
    return tuple(
        ChangeRow(name, "" if is_new else shown(name, old), shown(name, new), "")
        for name, (old, new) in changes.items()
    )


def shown(name: str, value: Any) -> str:
    """A stored value of that field, in words."""
    if value is None:
        return {"pools": "all pools", "expires_at": "never"}.get(name, "no bound" if name in quota_names() else "–")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in value)
    if isinstance(value, (int, float)):
        return f"{value:,.15g}" if isinstance(value, float) else f"{value:,}"
    return str(value) or "(empty)"


def present_pools(ranks: Mapping[str, int], existing: Collection[str]) -> tuple[PoolChoice, ...]:
    """A choice a pool that exists, in order, and one for each that a tenant was given and that is gone."""
    choices = [PoolChoice(name=name, rank=ranks.get(name, 0)) for name in existing]
    gone = sorted(set(ranks) - set(existing))
    return (*choices, *(PoolChoice(name=name, rank=ranks[name], exists=False) for name in gone))


def pools_in_words(pools: Sequence[str] | None) -> str:
    """Which pools a tenant may use."""
    return "all" if pools is None else ", ".join(pools)


def count(number: int, noun: str) -> str:
    """`1 token`, `1,234 tokens`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def compact(number: int) -> str:
    """`9,999`, `12.3k`, `1.23M`, `45.6G`: what fits a narrow column."""
    if number < 10_000:
        return f"{number:,}"
    for unit, power in (("k", 3), ("M", 6), ("G", 9), ("T", 12)):
        scaled = number / 10**power
        if scaled < 999.5 or unit == "T":
            return f"{scaled:.3g}{unit}" if scaled < 999.5 else f"{scaled:,.0f}{unit}"
    raise AssertionError("the last unit takes every number")


def _words(name: str, *, bound: int | None, used: int | None, percent: int | None) -> str:
    if name not in _USES:
        return "no bound" if bound is None else f"at most {bound:,} tokens"
    noun = "token" if "tokens" in name else "request"
    if used is None:
        return "not counted: no bound" if bound is None else f"at most {count(bound, noun)}; use unknown"
    how = _USES[name][1]
    if bound is None:
        return how.format(count(used, noun)) + "; no bound"
    return how.format(f"{used:,} of {count(bound, noun)}") + f" ({percent}%)"


def _brief(*, bound: int | None, used: int | None, percent: int | None) -> str:
    if bound is None:
        return "no bound" if used is None else f"{used:,}; no bound"
    return f"at most {bound:,}; use unknown" if used is None else f"{used:,} of {bound:,} ({percent}%)"
