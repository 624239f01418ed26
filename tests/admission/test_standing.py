"""What is left of quotas, in values."""

from __future__ import annotations

from serving.admission.accounts import Account, Charge
from serving.admission.standing import RateLimit, Standing, counted_charges, has_rate_limits, rate_limits_of
from serving.contracts.quotas import Quotas


def charge(subject: str, **quotas: int) -> Charge:
    return Charge(subject, Quotas(**quotas))


def test_the_tighter_of_tenant_and_key_is_told_for_each_kind() -> None:
    charges = [
        charge("tenant:1", requests_per_minute=10, tokens_per_minute=100),
        charge("key:a", requests_per_minute=5, tokens_per_minute=1000),
    ]
    assert rate_limits_of(charges, [Standing(9, 40, 3.0), Standing(1, 40, 2.0)]) == [
        RateLimit(kind="requests", limit=10, remaining=1, reset_seconds=3.0),
        RateLimit(kind="tokens", limit=100, remaining=60, reset_seconds=3.0),
    ]
    assert [limit.limit for limit in rate_limits_of(charges, [Standing(0, 0, 0.0), Standing(1, 950, 2.0)])] == [5, 1000]


def test_what_a_lowered_quota_left_behind_is_no_debt() -> None:
    (limit,) = rate_limits_of([charge("tenant:1", tokens_per_minute=10)], [Standing(3, 40, 9.0)])
    assert limit.remaining == 0


def test_only_what_is_bounded_is_told_or_counted() -> None:
    daily, free = charge("tenant:1", tokens_per_day=5), charge("key:a", max_output_tokens=5)
    account = Account(charges=(daily, free))
    assert counted_charges(account) == (daily,)
    assert not has_rate_limits(account)
    assert rate_limits_of([daily], [Standing(1, 1, 1.0)]) == []
    assert has_rate_limits(Account(charges=(daily, charge("key:a", requests_per_minute=1))))
