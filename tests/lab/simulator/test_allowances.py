"""Tenants' quotas in a simulation, and what its result says that it left out."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.admission.tenants import ensure_tenant
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.costs.model import Fit
from serving.lab.runs.tenant_quotas import quotas_of_tenants
from serving.lab.simulator.allowances import WINDOW_SECONDS, Allowances
from serving.lab.simulator.left_out import notes_of_left_out, part_of_quotas
from serving.lab.simulator.simulation import Simulation, simulate
from serving.lab.workloads.arrivals import Poisson
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import PlannedRequest, RequestClass, Workload

pytestmark = pytest.mark.heavy

WORKLOAD = Workload(
    name="two tenants",
    arrivals=Poisson(rate=4.0),
    classes=(
        RequestClass(name="a", tenant="acme", prompt_tokens=Fixed(20), output_tokens=Fixed(4)),
        RequestClass(name="b", prompt_tokens=Fixed(20), output_tokens=Fixed(4)),
    ),
    duration_seconds=150,
)


def planned(index: int, *, tenant: str = "acme", prompt: int = 20, output: int = 4) -> PlannedRequest:
    return PlannedRequest(
        index=index,
        due_seconds=0.0,
        request_class="a",
        tenant=tenant,
        priority=0,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        prefix=None,
        num_prefix_tokens=0,
        is_streamed=True,
        cancel_after_tokens=None,
    )


def run(quotas: dict[str, Quotas], **options: Any) -> Simulation:
    terms: dict[str, Any] = {"tunables": Tunables(), "cost": DEFAULT_COST, "envelope": DEFAULT_ENVELOPE}
    return simulate(WORKLOAD, keeps_outcomes=True, quotas=quotas, **terms | options)


def test_a_minutes_requests_are_bounded_for_the_tenant_and_for_nobody_else() -> None:
    result = run({"acme": Quotas(requests_per_minute=30)})
    assert result.summary.refused_by_code.keys() == {"rate_limit_exceeded"}
    served = [each for each in result.outcomes if each.tenant == "acme" and each.ending == "finished"]
    assert len(served) == 90  # thirty in each of three minutes
    assert {each.tenant for each in result.outcomes if each.ending == "refused"} == {"acme"}


def test_what_no_quota_will_ever_allow_has_failed() -> None:
    result = run({"": Quotas(max_prompt_tokens=19), "acme": Quotas(max_output_tokens=3)})
    assert result.summary.total.num_failed == result.num_requests
    assert {each.code for each in result.outcomes} == {"prompt_too_long", "invalid_value"}


def test_requests_at_once_are_bounded() -> None:
    slow = msgspec.structs.replace(DEFAULT_COST, step_seconds=0.5)
    free, bound = run({}, cost=slow), run({"acme": Quotas(max_concurrent_requests=1)}, cost=slow)
    assert free.summary.total.num_refused == 0
    served = sorted(
        (each.due_seconds, each.end_seconds) for each in bound.outcomes if each.tenant == "acme" and not each.code
    )
    assert len(served) > 10
    for (_, ended), (due, _) in itertools.pairwise(served):
        assert due + slow.request_seconds >= ended - 1e-9


def test_what_was_reserved_and_not_used_is_given_back() -> None:
    allowances = Allowances({"acme": Quotas(tokens_per_minute=100)})
    first = planned(0, prompt=20, output=80)
    assert allowances.verdict(first, 0.0) is None
    allowances.charge(first, 0.0)
    assert allowances.verdict(planned(1), 1.0) == "rate_limit_exceeded"
    allowances.settle(first, used_tokens=30, at_seconds=1.0)
    assert allowances.verdict(planned(1, prompt=66), 1.0) is None
    assert allowances.verdict(planned(1, prompt=67), 1.0) == "rate_limit_exceeded"
    assert allowances.verdict(planned(1, prompt=67), WINDOW_SECONDS) is None


@given(
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 60), st.integers(0, 3)), max_size=60),
    bound=st.integers(1, 8),
)
@settings(max_examples=100)
def test_no_minute_has_more_than_its_quotas(steps: list[tuple[float, int, int]], bound: int) -> None:
    quotas = Quotas(requests_per_minute=bound, tokens_per_minute=100, max_concurrent_requests=3)
    allowances = Allowances({"acme": quotas})
    now, let_in, is_open = 0.0, list[tuple[float, int]](), list[PlannedRequest]()
    for index, (pause, prompt, num_ended) in enumerate(steps):
        now += pause
        for _ in range(min(num_ended, len(is_open))):
            ended = is_open.pop(0)
            allowances.settle(ended, used_tokens=ended.num_prompt_tokens + ended.num_output_tokens, at_seconds=now)
        request = planned(index, prompt=prompt)
        recent = [amount for at, amount in let_in if at > now - WINDOW_SECONDS]
        fits = len(recent) < bound and sum(recent) + prompt + 4 <= 100 and len(is_open) < 3
        assert (allowances.verdict(request, now) is None) == fits
        if fits:
            allowances.charge(request, now)
            let_in.append((now, prompt + 4))
            is_open.append(request)


def test_engines_of_a_fleet_share_the_quotas() -> None:
    assert part_of_quotas(Quotas(requests_per_minute=30, max_prompt_tokens=9), 4) == Quotas(
        requests_per_minute=8, max_prompt_tokens=9
    )
    result = run({"acme": Quotas(requests_per_minute=30)}, num_engines=2, num_processes=1)
    assert any("its part of the quotas: acme" in note for note in result.summary.notes)
    assert sum(each.tenant == "acme" and not each.code for each in result.outcomes) <= 90


def notes(tunables: dict[str, Any] | None = None, **options: Any) -> str:
    terms: dict[str, Any] = {"cost": DEFAULT_COST, "quotas": {}, "num_engines": 1}
    return "\n".join(notes_of_left_out(WORKLOAD, tunables=Tunables().changed(tunables or {}), **terms | options))


def test_what_is_left_out_is_said_where_it_matters() -> None:
    assert notes() == ""
    assert "Speculation is on and was left out" in notes({"speculation": "on"})
    assert "in truth pool bulk takes them" in notes({"long_prompt_pool": "bulk"})
    assert notes(quotas={"acme": Quotas(tokens_per_day=9)}) == "Quotas of a day or month were left out: acme."
    assert notes(quotas={"nobody here": Quotas(tokens_per_day=9)}) == ""
    fit = Fit(num_steps=9, num_held_back=2, median_error=0.1, p95_error=0.2, total_error=0.0)
    assumed = msgspec.structs.replace(fit, assumed=("context_token_seconds",), num_ways=5)
    assert "the length of contexts" in notes(cost=msgspec.structs.replace(DEFAULT_COST, fit=assumed))
    assert "on its way" in notes(cost=msgspec.structs.replace(DEFAULT_COST, fit=fit))


def test_with_speculation_on_no_draft_is_made_up() -> None:
    with_drafts = run({}, tunables=Tunables().changed({"speculation": "on"}))
    without = run({})
    assert with_drafts.num_steps == without.num_steps
    assert with_drafts.summary.total == without.summary.total


@pytest.mark.django_db
def test_quotas_are_found_by_the_names_that_a_workload_has() -> None:
    acme, own, other = ensure_tenant("acme"), ensure_tenant("lab"), ensure_tenant("other")
    for tenant, bound in ((acme, 5), (own, 6), (other, 7)):
        tenant.quota_versions.create(number=1, values={"requests_per_minute": bound}, author="ann")
    assert quotas_of_tenants(WORKLOAD) == {"acme": Quotas(requests_per_minute=5), "": Quotas(requests_per_minute=6)}
    own.quota_versions.create(number=2, values={}, author="ann")
    assert quotas_of_tenants(WORKLOAD) == {"acme": Quotas(requests_per_minute=5)}
