"""What pages show of quotas and their use."""

from __future__ import annotations

import dataclasses

import pytest

from dashboard.tenant_presenters import compact, present_bar, present_bars, present_pools, shown
from serving.contracts.quotas import Quotas, quota_names


@dataclasses.dataclass
class Use:
    requests: int = 3
    tokens: int = 50
    open: int = 1
    tokens_of_day: int | None = None
    tokens_of_month: int | None = 700


def test_every_quota_has_a_bar() -> None:
    bars = present_bars(Quotas(), Use(), of_day=0, of_month=0)
    assert [bar.name for bar in bars] == list(quota_names())
    assert all(bar.percent is None for bar in bars)


def test_the_greater_of_door_and_ledger_counts() -> None:
    bars = {bar.name: bar for bar in present_bars(Quotas(tokens_per_month=1000), Use(), of_day=5, of_month=650)}
    assert bars["tokens_per_day"].words == "5 tokens today; no bound"
    assert bars["tokens_per_month"].words == "700 of 1,000 tokens this month (70%)"
    unknown = {bar.name: bar for bar in present_bars(Quotas(tokens_per_month=1000), None, of_day=0, of_month=650)}
    assert unknown["tokens_per_month"].words == "650 of 1,000 tokens this month (65%)"
    assert unknown["requests_per_minute"].words == "not counted: no bound"


@pytest.mark.parametrize(
    ("used", "percent", "width", "level"),
    [
        (0, 0, "0", ""),
        (1, 0, "0.1", ""),
        (799, 79, "79.9", ""),
        (800, 80, "80", "near"),
        (999, 99, "99.9", "near"),
        (1000, 100, "100", "full"),
        (2500, 250, "100", "full"),
    ],
)
def test_a_bar_says_how_near_its_quota_is(used: int, percent: int, width: str, level: str) -> None:
    bar = present_bar("tokens_per_minute", bound=1000, used=used)
    assert (bar.percent, bar.width, bar.level) == (percent, width, level)
    assert f"({percent}%)" in bar.words


def test_one_is_one() -> None:
    assert present_bar("max_concurrent_requests", bound=None, used=1).words == "1 request waiting or running; no bound"
    assert present_bar("requests_per_minute", bound=1, used=None).words == "at most 1 request; use unknown"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (10**13, "10T"),
        (10**16, "10,000T"),
    ],
)
def test_big_numbers_fit_a_column(number: int, text: str) -> None:
    assert compact(number) == text


def test_stored_values_are_said_in_words() -> None:
    assert shown("pools", None) == "all pools"
    assert shown("pools", ["chat", "bulk"]) == "chat, bulk"
    assert shown("tokens_per_day", None) == "no bound"
    assert shown("expires_at", None) == "never"
    assert shown("enabled", False) == "no"
    assert shown("weight", 0.5) == "0.5"
    assert shown("weight", 1000.0) == "1,000"
    assert shown("label", "") == "(empty)"


def test_pools_that_are_gone_are_told_from_those_that_exist() -> None:
    choices = present_pools({"old": 1, "chat": 2}, ["bulk", "chat"])
    assert [(each.name, each.rank, each.exists) for each in choices] == [
        ("bulk", 0, True),
        ("chat", 2, True),
        ("old", 1, False),
    ]
