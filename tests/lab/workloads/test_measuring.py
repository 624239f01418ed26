"""Workloads measured from the request log."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from serving.contracts.errors import InvalidValue, PoolNotFound
from serving.lab.workloads.arrivals import Gamma, Poisson, Steps, Trace
from serving.lab.workloads.distributions import LogNormal
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.measuring import Measured, measure_workload
from serving.lab.workloads.workload import SharedPrefixes, Slo
from serving.telemetry.models import RequestRecord
from serving.tuning.services import ensure_pool
from tests.lab.workloads.shapes import request_class, workload
from tests.telemetry.logged import POOL, START, stored

pytestmark = pytest.mark.django_db

HOUR = datetime.timedelta(hours=1)


@pytest.fixture(autouse=True)
def pool() -> None:
    ensure_pool(POOL, "tiny")


def log(count: int, *, every: float = 1.0, first: str = "req", **changes: Any) -> None:
    facts = {"prompt_tokens": 100, "completion_tokens": 20, "is_streamed": True, **changes}
    RequestRecord.objects.bulk_create([stored(f"{first}_{n}", n * every, **facts) for n in range(count)])


def measure(**changes: Any) -> Measured:
    return measure_workload(**{"pool": POOL, "since": START, "until": START + HOUR, "name": "ours", **changes})


def test_measures_rate_lengths_and_manners_of_each_tenant_and_priority() -> None:
    log(30, first="a", cached_tokens=64)
    log(10, first="b", every=3.0, tenant="beta", prompt_tokens=500, is_streamed=False, params={"priority": 5})
    found = measure().workload
    acme, beta = found.classes
    assert (acme.name, acme.tenant, acme.priority, acme.share) == ("acme", "acme", 0, 30)
    assert (beta.name, beta.tenant, beta.priority, beta.share) == ("beta-p5", "beta", 5, 10)
    assert (acme.streaming_share, beta.streaming_share) == (1, 0)
    assert (acme.prefixes, beta.prefixes) == (SharedPrefixes(share=1, tokens=64), None)
    planned = list(plan_requests(found))
    assert {(each.tenant, each.num_prompt_tokens, each.num_output_tokens) for each in planned} == {
        ("acme", 100, 20),
        ("beta", 500, 20),
    }
    assert len(planned) == pytest.approx(40, rel=0.5)


def test_one_group_alone_is_divided_by_what_was_asked_for() -> None:
    log(3, first="a")
    log(2, first="b", endpoint="completion")
    log(4, first="c", endpoint="embedding")
    assert [(each.name, each.share, each.tenant) for each in measure().workload.classes] == [
        ("chat", 3, "acme"),
        ("completion", 2, "acme"),
    ]


def test_small_groups_beyond_the_largest_nineteen_become_one() -> None:
    for number in range(25):
        log(30 - number, first=f"t{number}", tenant=f"tenant {number}")
    classes = measure().workload.classes
    assert len(classes) == 20
    assert (classes[0].name, classes[0].tenant) == ("tenant-0", "tenant 0")
    assert (classes[-1].name, classes[-1].tenant) == ("others", "")
    assert sum(each.share for each in classes) == sum(30 - number for number in range(25))


def test_tenants_whose_names_differ_in_signs_alone_stay_apart() -> None:
    log(3, first="a", tenant="a b")
    log(2, first="b", tenant="a/b")
    log(1, first="c", tenant="日本")
    assert [each.name for each in measure().workload.classes] == ["a-b", "a-b-2", "class"]


def test_what_was_cut_short_tells_no_length_of_answers_but_counts_as_an_arrival() -> None:
    log(10, first="a")
    log(5, first="b", outcome="aborted", completion_tokens=1)
    log(5, first="c", outcome="refused", completion_tokens=0)
    found = measure()
    (only,) = found.workload.classes
    assert only.share == 20
    assert only.cancelled_share == 0.25
    evidence = found.evidence.classes[only.name]
    assert evidence.output is not None
    assert (evidence.num_finished, evidence.output.num_measured, evidence.output.longest) == (10, 10, 20)
    assert any("5 aborted, 5 refused" in note for note in found.evidence.notes)


def test_objectives_are_the_pools() -> None:
    log(3)
    slo = measure().workload.classes[0].slo
    assert slo == Slo(ttft_ms=slo.ttft_ms, itl_ms=slo.itl_ms)
    assert slo.ttft_ms is not None
    assert slo.itl_ms is not None


def test_moments_become_steps_or_a_trace_where_that_is_asked_for() -> None:
    log(48, every=2.5)
    trace = measure(arrivals_as="trace").workload
    assert isinstance(trace.arrivals, Trace)
    assert [each.due_seconds for each in plan_requests(trace)] == [number * 2.5 for number in range(48)]
    steps = measure(arrivals_as="steps").workload
    assert isinstance(steps.arrivals, Steps)
    assert steps.duration_seconds == 117.5
    assert sum(steps.arrivals.rates) / 24 * 117.5 == pytest.approx(48, rel=0.01)


def test_a_single_request_is_measured_and_said_to_be_few() -> None:
    log(1)
    found = measure()
    assert found.workload.arrivals == Poisson(1 / 3600)
    assert any("1 requests are few" in note for note in found.evidence.notes)


def test_only_the_range_the_pool_and_the_tenant_count() -> None:
    log(5, first="a")
    log(5, first="b", pool="other")
    log(5, first="c", tenant="beta")
    found = measure(
        since=START + datetime.timedelta(seconds=1), until=START + datetime.timedelta(seconds=4), tenant="beta"
    )
    assert found.evidence.num_requests == 3
    assert found.evidence.first_at == START + datetime.timedelta(seconds=1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "since"),
        ({"until": START}, "until"),
        ({"until": START + datetime.timedelta(days=8)}, "until"),
    ],
)
def test_refuses_a_range_that_is_empty_or_none(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        measure(**changes)
    assert caught.value.field == field


def test_refuses_a_pool_that_there_is_none_of() -> None:
    with pytest.raises(PoolNotFound):
        measure(pool="nowhere")


def test_of_more_than_can_be_looked_at_the_newest_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.lab.workloads.measuring.MAX_TRACE_REQUESTS", 7)
    log(10)
    evidence = measure().evidence
    assert (evidence.num_in_range, evidence.num_requests) == (10, 7)
    assert evidence.first_at == START + datetime.timedelta(seconds=3)
    assert any("Of 10 requests the newest 7" in note for note in evidence.notes)


def test_finds_a_workload_again_in_the_log_of_its_requests() -> None:
    played = workload(
        arrivals=Gamma(5, 2.0),
        classes=(
            request_class("a", share=3, tenant="acme", cancelled_share=0.1, prefixes=SharedPrefixes(0.5, 48)),
            request_class("b", tenant="beta", output_tokens=LogNormal(90, 0.6), streaming_share=0.3),
        ),
        duration_seconds=200.0,
    )
    RequestRecord.objects.bulk_create(
        stored(
            f"req_{each.index}",
            each.due_seconds or 0.0,
            tenant=each.tenant,
            is_streamed=each.is_streamed,
            prompt_tokens=each.num_prompt_tokens,
            cached_tokens=each.num_prefix_tokens,
            completion_tokens=each.num_output_tokens if each.cancel_after_tokens is None else each.cancel_after_tokens,
            outcome="finished" if each.cancel_after_tokens is None else "aborted",
        )
        for each in plan_requests(played)
    )
    found = measure().workload
    assert isinstance(found.arrivals, Gamma)
    assert found.arrivals.rate == pytest.approx(5, rel=0.2)
    assert found.arrivals.cv == pytest.approx(2, rel=0.2)
    acme, beta = found.classes
    assert acme.share / beta.share == pytest.approx(3, rel=0.25)
    assert acme.cancelled_share == pytest.approx(0.1, abs=0.04)
    assert beta.streaming_share == pytest.approx(0.3, abs=0.08)
    assert acme.prefixes == SharedPrefixes(pytest.approx(0.5, abs=0.05), 48)
    assert isinstance(acme.prompt_tokens, LogNormal)
    assert acme.prompt_tokens.median == pytest.approx(200, rel=0.1)
    assert isinstance(beta.output_tokens, LogNormal)
    assert (beta.output_tokens.median, beta.output_tokens.sigma) == pytest.approx((90, 0.6), rel=0.12)
