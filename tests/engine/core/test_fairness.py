"""The service counters: lifts, weights and what is forgotten."""

from __future__ import annotations

import pytest

from serving.engine.fairness import ServiceLedger


def test_a_newcomer_begins_at_the_least_counter_of_those_that_wait() -> None:
    ledger = ServiceLedger()
    costs = {"gone": 5.0, "a": 50.0, "b": 80.0}
    for tenant in costs:
        ledger.begin_waiting(tenant)
    for tenant, cost in costs.items():
        ledger.charge(tenant, cost)
    ledger.end_waiting("gone")
    ledger.begin_waiting("new")
    assert ledger.service("new") == 50.0
    ledger.begin_waiting("gone")
    assert ledger.service("gone") == 50.0


def test_a_lift_never_lowers() -> None:
    ledger = ServiceLedger()
    ledger.begin_waiting("a")
    ledger.begin_waiting("b")
    ledger.charge("b", 70.0)
    ledger.end_waiting("b")
    ledger.begin_waiting("b")
    assert ledger.service("b") == 70.0


def test_while_nobody_waits_the_last_that_did_sets_the_level() -> None:
    ledger = ServiceLedger()
    ledger.begin_waiting("a")
    ledger.end_waiting("a")
    ledger.charge("a", 90.0)
    ledger.begin_waiting("new")
    assert ledger.service("new") == 90.0


def test_a_tenant_waits_until_its_last_sequence_does_not() -> None:
    ledger = ServiceLedger()
    for tenant in ("a", "a", "b"):
        ledger.begin_waiting(tenant)
    ledger.charge("b", 10.0)
    ledger.end_waiting("a")
    ledger.begin_waiting("new")
    assert ledger.service("new") == 0.0


@pytest.mark.parametrize(("weight", "cost"), [(1.0, 9.0), (3.0, 3.0), (0.5, 18.0), (1e-300, 9e6), (1e300, 9e-6)])
def test_costs_are_divided_by_the_weight_within_reason(weight: float, cost: float) -> None:
    assert ServiceLedger.cost(5, 2, weight) == pytest.approx(cost)


def test_memory_is_bounded_and_what_matters_is_kept() -> None:
    ledger = ServiceLedger()
    ledger.begin_waiting("steady")
    ledger.begin_waiting("debtor")
    ledger.charge("debtor", 1e9)
    ledger.end_waiting("debtor")
    for i in range(50_000):
        ledger.begin_waiting(f"t{i}")
        ledger.charge(f"t{i}", 1.0)
        ledger.end_waiting(f"t{i}")
        ledger.charge("steady", 2.0)
    assert len(ledger) < 200
    assert ledger.service("debtor") == 1e9
    assert ledger.service("steady") == 100_000.0


def test_memory_is_bounded_where_all_are_in_debt() -> None:
    ledger = ServiceLedger()
    ledger.begin_waiting("steady")
    for i in range(50_000):
        ledger.begin_waiting(f"t{i}")
        ledger.charge(f"t{i}", 1.0)
        ledger.end_waiting(f"t{i}")
    assert len(ledger) < 25_000
