"""The criteria of an overload test: each passes where backpressure does what the policy says, and fails where not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serving.lab.experiments.capacity import Capacity
from serving.lab.experiments.evidence import AtRest
from serving.lab.experiments.overload_facts import Facts
from serving.lab.experiments.overload_fairness import fair_shares
from serving.lab.experiments.overload_judging import judge
from serving.lab.experiments.overload_plan import Criteria
from serving.lab.summaries import Outcome
from tests.lab.experiments.overloading import CAPACITY, a_class, a_course, a_workload, facts_of, named, refused, served


def changed(outcomes: list[Outcome], ending: str, **changes: Any) -> list[Outcome]:
    """All that ended so, changed alike."""
    return [msgspec.structs.replace(each, **changes) if each.ending == ending else each for each in outcomes]


def verdict_of(name: str, facts: Facts) -> tuple[str, str]:
    found = named(judge(facts), name)
    return found.judged, found.measured


def test_a_pool_that_keeps_its_promises_passes_every_criterion() -> None:
    verdicts = judge(facts_of(capacity=msgspec.structs.replace(CAPACITY, goodput_per_second=2.0)))
    assert {verdict.name: verdict.judged for verdict in verdicts if verdict.judged != "passed"} == {}


def test_without_overload_nothing_is_proved() -> None:
    calm = [served(index, index / 2) for index in range(60)]
    assert verdict_of("overloaded", facts_of(calm))[0] == "failed"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("queue_requests", {"permits": (257, 128)}),
        ("queue_tokens", {"permits": (2, 262_145)}),
        ("memory", {"kv_used_ratio": 0.9, "kv_limit_ratio": 0.8}),
        ("counted", {"logged": {"finished": 39, "refused": 19}}),
        ("left_behind", {"rest": AtRest(num_running=0, num_waiting=0, permits_requests=1, permits_tokens=64)}),
        ("goodput", {"capacity": Capacity(saturation_per_second=2, goodput_per_second=4, goodput_rate=2, probes=())}),
        ("queue_wait", {"max_queue_wait_ms": 400.0, "criteria": Criteria(wait_slack_ms=50)}),
    ],
)
def test_what_is_beyond_its_bound_fails(name: str, facts: dict[str, Any]) -> None:
    assert verdict_of(name, facts_of(**facts))[0] == "failed"


def test_slow_refusals_fail() -> None:
    slow = changed(a_course(), "refused", e2e_seconds=1.5)
    assert verdict_of("fast_refusals", facts_of(slow)) == ("failed", "p95 1,500 ms")


def test_a_refusal_after_the_longest_wait_is_not_one_at_the_door() -> None:
    waited = changed(a_course(), "refused", e2e_seconds=60.0, code="queue_timeout")
    assert verdict_of("fast_refusals", facts_of(waited))[0] == "not judged"
    assert verdict_of("queue_wait", facts_of(waited)) == ("passed", "60,000 ms at most")
    assert verdict_of("queue_wait", facts_of(changed(waited, "refused", e2e_seconds=61.5)))[0] == "failed"


def test_a_refusal_that_does_not_say_when_to_come_back_fails() -> None:
    silent = [*a_course(), refused(999, 19.9, retry=None)]
    assert verdict_of("retry_after", facts_of(silent)) == ("failed", "20 of 21")


def test_a_retry_after_is_true_where_a_place_fell_free_within_it() -> None:
    assert verdict_of("truthful", facts_of()) == ("passed", "100%")
    hasty = changed(a_course(), "refused", retry_after_seconds=0.05)
    assert verdict_of("truthful", facts_of(hasty))[0] == "failed"


def test_failures_are_no_part_of_any_policy() -> None:
    broken = [*a_course(), served(500, 15.0, ending="failed", code="broken", queue_seconds=None, ttft_seconds=None)]
    assert verdict_of("no_failures", facts_of(broken)) == ("failed", "1 of 60 failed")


def test_goodput_is_not_judged_where_nothing_was_ever_in_time() -> None:
    none = Capacity(saturation_per_second=2, goodput_per_second=0, goodput_rate=None, probes=())
    assert verdict_of("goodput", facts_of(capacity=none))[0] == "not judged"


def test_recovery_is_held_against_the_calm_before() -> None:
    judged, measured = verdict_of("recovery", facts_of())
    assert (judged, measured) == ("passed", "after 0.2 s")
    slow = [msgspec.structs.replace(each, ttft_seconds=5.0) if each.index >= 200 else each for each in a_course()]
    assert verdict_of("recovery", facts_of(slow)) == ("failed", "not within the last stage")


def test_recovery_that_takes_longer_than_the_bound_fails() -> None:
    late = [msgspec.structs.replace(each, ttft_seconds=5.0) if 200 <= each.index < 203 else each for each in a_course()]
    criteria = Criteria(max_recovery_seconds=1.0)
    judged, measured = verdict_of("recovery", facts_of(late, criteria=criteria))
    assert judged == "failed"
    assert measured.startswith("after ")


def test_two_accounts_of_the_queue_that_differ_fail() -> None:
    # Twenty requests waited for two seconds each: four at a time, where the gauges tell of one.
    longer = [
        msgspec.structs.replace(each, queue_seconds=2.0) if 10 <= each.due_seconds < 20 else each for each in a_course()
    ]
    assert verdict_of("littles_law", facts_of(longer))[0] == "failed"
    assert verdict_of("littles_law", facts_of())[0] == "passed"


def test_what_others_may_have_left_is_not_held_against_the_pool() -> None:
    theirs = AtRest(num_running=1, num_waiting=0, permits_requests=0, permits_tokens=0, has_others=True)
    assert verdict_of("left_behind", facts_of(rest=theirs))[0] == "not judged"


def test_a_simulation_is_not_judged_by_what_it_cannot_tell() -> None:
    verdicts = judge(facts_of(changed(a_course(), "refused", retry_after_seconds=None), is_simulated=True))
    unknown = {verdict.name for verdict in verdicts if verdict.judged == "not judged"}
    assert unknown == {"counted", "retry_after", "truthful", "left_behind"}


def two_tenants(*, ada: int, ben: int) -> list[Outcome]:
    """Each asks forty times in the rush, and is served so often."""
    outcomes = [served(index, float(index), tenant="ada", request_class="a") for index in range(10)]
    for tenant, name, number in (("ada", "a", ada), ("ben", "b", ben)):
        for index in range(40):
            due = 10 + index / 4
            who = {"tenant": tenant, "request_class": name}
            outcomes.append(served(index, due, **who) if index < number else refused(index, due, **who))
    return outcomes


@pytest.mark.parametrize(("ada", "ben", "judged"), [(20, 20, "passed"), (18, 22, "passed"), (38, 2, "failed")])
def test_tenants_are_held_against_what_the_order_promises(ada: int, ben: int, judged: str) -> None:
    workload = a_workload(a_class("a", tenant="ada"), a_class("b", tenant="ben"))
    facts = facts_of(two_tenants(ada=ada, ben=ben), workload=workload)
    assert verdict_of("fairness", facts)[0] == judged


def test_priorities_promise_no_fairness() -> None:
    workload = a_workload(a_class("a", tenant="ada"), a_class("b", tenant="ben"))
    facts = facts_of(two_tenants(ada=38, ben=2), workload=workload, order="priority")
    assert verdict_of("fairness", facts)[0] == "not judged"


def test_with_one_tenant_there_is_nobody_to_be_fair_to() -> None:
    assert "fairness" not in {verdict.name for verdict in judge(facts_of())}


def test_fair_shares_give_nobody_more_than_is_asked_and_divide_the_rest() -> None:
    assert fair_shares({"small": 10, "middle": 40, "large": 100}, 90) == {"small": 10, "middle": 40, "large": 40}
    assert fair_shares({"one": 10, "other": 10}, 10) == {"one": 5, "other": 5}
