"""What lists of tenants and pages about usage show, from what was read: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from dashboard.tenant_presenters import QuotaBar, count

DAYS = (7, 30, 90)
"""The ranges that usage is shown over, in days."""

NO_KEY = "without a key"


class Sums(Protocol):
    """What was used in a while."""

    @property
    def num_requests(self) -> int: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def tokens(self) -> int: ...


class FoundTalker(Protocol):
    """A tenant, or a key of it, and what it used."""

    @property
    def tenant_id(self) -> int: ...

    @property
    def tenant(self) -> str: ...

    @property
    def key_prefix(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def sums(self) -> Sums: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """One tenant in the list; `bar` is that of a minute's tokens. `used_on` is the last day of use without a key, where
    that is later than the last use of a key."""

    id: int
    name: str
    enabled: bool
    weight: str
    pools: str
    today: str
    today_requests: str
    month: str
    month_requests: str
    bar: QuotaBar
    num_keys: int
    last_used_at: datetime.datetime | None
    used_on: datetime.date | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TalkerRow:
    """One of those that used most; `width` is its share of what the first used, at most 100."""

    tenant_id: int
    tenant: str
    key_prefix: str
    label: str
    tokens: str
    words: str
    width: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DayRow:
    """One day of usage; the numbers are drawn, the texts are read."""

    day: datetime.date
    prompt_tokens: int
    completion_tokens: int
    num_requests: int
    texts: tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsageRow:
    """What was used with one key; `prefix` is empty for what no key was used for."""

    prefix: str
    label: str
    texts: tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class RangeChoice:
    """A range of days that can be looked at."""

    days: int
    label: str
    url: str
    is_chosen: bool


def present_talkers(found: Iterable[FoundTalker]) -> tuple[TalkerRow, ...]:
    """A row each, in their order."""
    talkers = list(found)
    most = max((each.sums.tokens for each in talkers), default=0)
    return tuple(
        TalkerRow(
            tenant_id=each.tenant_id,
            tenant=each.tenant,
            key_prefix=each.key_prefix,
            label=each.label,
            tokens=f"{each.sums.tokens:,}",
            words=count(each.sums.num_requests, "request"),
            width=f"{100 * each.sums.tokens / most:.4g}",
        )
        for each in talkers
    )


def present_days(
    sums: Mapping[datetime.date, Sums], *, since_day: datetime.date, today: datetime.date
) -> tuple[DayRow, ...]:
    """A row for each day, the newest first, also those on which nothing was used."""
    days = (today - datetime.timedelta(days=back) for back in range((today - since_day).days + 1))
    return tuple(
        DayRow(
            day=day,
            prompt_tokens=0 if day not in sums else sums[day].prompt_tokens,
            completion_tokens=0 if day not in sums else sums[day].completion_tokens,
            num_requests=0 if day not in sums else sums[day].num_requests,
            texts=texts_of(sums.get(day)),
        )
        for day in days
    )


def present_key_usage(sums: Mapping[str, Sums], labels: Mapping[str, str]) -> tuple[KeyUsageRow, ...]:
    """A row for each key, in their order."""
    return tuple(
        KeyUsageRow(prefix=prefix, label=labels.get(prefix, "") if prefix else NO_KEY, texts=texts_of(each))
        for prefix, each in sums.items()
    )


def present_ranges(url: str, *, chosen: int, days: Sequence[int] = DAYS, rest: str = "") -> tuple[RangeChoice, ...]:
    """A link for each range; `rest` is what else the address asks for, from its `&` on."""
    return tuple(
        RangeChoice(each, "today" if each == 1 else f"{each} days", f"{url}?days={each}{rest}", each == chosen)
        for each in days
    )


def total_of(sums: Iterable[Sums]) -> tuple[str, str, str, str]:
    """All of these together, as `texts_of`."""
    found = list(sums)
    prompt, completion = sum(each.prompt_tokens for each in found), sum(each.completion_tokens for each in found)
    requests = sum(each.num_requests for each in found)
    return f"{requests:,}", f"{prompt:,}", f"{completion:,}", f"{prompt + completion:,}"


def texts_of(sums: Sums | None) -> tuple[str, str, str, str]:
    """Requests, tokens of prompts, tokens of answers, and both together."""
    return total_of([] if sums is None else [sums])
