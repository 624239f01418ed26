"""An overload test's requests by stage and over time."""

from __future__ import annotations

import pytest

from serving.lab.experiments.overload_stages import (
    mean_told_waiting,
    mean_waiting,
    recovery_seconds,
    slices_of,
    stages_of,
)
from serving.lab.workloads.workload import Slo
from tests.lab.experiments.overloading import MULTIPLES, STAGE_SECONDS, a_course, facts_of, refused, served


def test_a_stage_counts_what_was_due_in_it_whenever_it_ended() -> None:
    found = [served(0, 9.9, wait=5.0), refused(1, 10.0), served(2, 19.99), served(3, 20.0)]
    stages = stages_of(found, MULTIPLES, stage_seconds=STAGE_SECONDS, slos={"chat": Slo(ttft_ms=1000)})
    assert [(stage.num_offered, stage.num_refused) for stage in stages] == [(1, 0), (2, 1), (1, 0)]
    assert [stage.goodput_per_second for stage in stages] == [0.0, 0.1, 0.1]
    assert stages[1].accepted_per_second == 0.1


def test_the_mean_queue_is_the_time_waited_cut_to_the_stretch() -> None:
    found = [
        served(0, 8.0, wait=4.0),
        refused(1, 11.0, after=3.0),
        served(2, 19.0, wait=5.0),
        served(3, 30.0, wait=9.0),
    ]
    assert mean_waiting(found, 10.0, 20.0) == pytest.approx((2 + 3 + 1) / 10)


def test_what_the_server_told_of_its_queue_is_weighed_by_time() -> None:
    moments = facts_of().summary.moments
    assert mean_told_waiting(moments, 10.0, 20.0) == pytest.approx(1.0)
    assert mean_told_waiting(moments, 5.0, 15.0) == pytest.approx(0.55)
    assert mean_told_waiting((), 0.0, 10.0) is None


def test_recovery_begins_with_the_first_request_from_which_on_all_is_as_before() -> None:
    slow = [served(index, 20.0 + index, wait=5.0) for index in range(3)]
    fine = [served(10 + index, 23.0 + index) for index in range(6)]
    assert recovery_seconds([*slow, *fine], after=20.0, bound_seconds=0.3) == pytest.approx(3.0)


def test_one_slow_request_is_no_relapse_and_two_are() -> None:
    fine = [served(index, 20.0 + index) for index in range(8)]
    one = [*fine[:4], served(4, 24.0, wait=5.0), *fine[5:]]
    two = [*one[:6], served(6, 26.0, wait=5.0), *one[7:]]
    assert recovery_seconds(one, after=20.0, bound_seconds=0.3) == 0.0
    assert recovery_seconds(two, after=20.0, bound_seconds=0.3) is None


def test_whoever_is_still_refused_has_not_recovered() -> None:
    assert recovery_seconds([refused(index, 20.0 + index) for index in range(9)], after=20, bound_seconds=1) is None


def test_slices_hold_every_request_where_it_was_due() -> None:
    facts = facts_of()
    slices = slices_of(facts.outcomes, facts.summary.moments)
    width = facts.summary.moments[0].seconds
    assert sum(each.offered_per_second * width for each in slices) == pytest.approx(len(a_course()))
    rush = [each for each in slices if 10 <= each.at_seconds < 20]
    assert all(each.offered_per_second == 4 for each in rush)
    assert all(each.accepted_per_second + each.refused_per_second == each.offered_per_second for each in slices)


def test_without_moments_there_is_no_course() -> None:
    assert slices_of(a_course(), ()) == ()
