"""Ordering again what was measured."""

from __future__ import annotations

import pytest

from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue, PoolNotConfigured
from serving.lab.experiments.capacity import Capacity
from serving.lab.experiments.overload_plan import OverloadPlan
from serving.lab.models import Experiment, Run
from serving.lab.steps.evidence import Ref
from serving.lab.steps.services import MOST_AT_ONCE, order_again, read_ref
from serving.lab.workloads.store import delete_workload, save_workload
from serving.tuning.models import Pool
from tests.lab.steps.evidence import MIXED, keep_experiment, keep_run, minutes_ago

pytestmark = pytest.mark.usefixtures("pool")


@pytest.mark.parametrize("kind", ["sweep", "overload", "three_ways"])
def test_an_experiment_is_ordered_with_the_same_plan_and_audited(kind: str) -> None:
    old = keep_experiment(kind)
    (ref,) = order_again([Ref(kind, old.pk)], author="ben")  # type: ignore[arg-type]
    new = Experiment.objects.get(pk=ref.id)
    assert ref.kind == new.kind == kind
    assert new.pk != old.pk
    assert (new.plan, new.title, new.pool, new.state, new.author) == (old.plan, old.title, old.pool, "waiting", "ben")
    event = AuditEvent.objects.get(action="experiment ordered")
    assert (event.actor, event.subject) == ("ben", f"{kind} {new.pk}")


def test_a_run_is_ordered_with_the_same_workload_though_it_was_deleted() -> None:
    save_workload(MIXED, author="ann")
    old = keep_run(MIXED)
    delete_workload("mixed", author="ann")
    (ref,) = order_again([Ref("run", old.pk)], author="ben")
    new = Run.objects.get(pk=ref.id)
    assert (new.workload, new.title, new.pool, new.state) == (old.workload, old.title, old.pool, "waiting")
    assert AuditEvent.objects.get(action="run ordered").actor == "ben"


def test_an_overload_test_measures_capacity_anew() -> None:
    capacity = Capacity(saturation_per_second=2.0, goodput_per_second=2.0, goodput_rate=1.8, probes=())
    old = keep_experiment("overload", plan=OverloadPlan(workload=MIXED, capacity=capacity))
    (ref,) = order_again([Ref("overload", old.pk)], author="ben")
    assert Experiment.objects.get(pk=ref.id).plan == old.plan | {"capacity": None}


def test_several_are_ordered_at_once_each_once() -> None:
    sweep, run = keep_experiment("sweep"), keep_run()
    refs = [Ref("sweep", sweep.pk), Ref("run", run.pk), Ref("sweep", sweep.pk)]
    assert [each.kind for each in order_again(refs, author="ben")] == ["sweep", "run"]


def test_all_or_none_are_ordered() -> None:
    sweep = keep_experiment("sweep")
    with pytest.raises(InvalidValue, match="one that there is"):
        order_again([Ref("sweep", sweep.pk), Ref("run", 999)], author="ben")
    assert Experiment.objects.count() == 1
    assert not AuditEvent.objects.filter(action="experiment ordered").exists()


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_what_waits_or_plays_already_is_not_ordered_twice(state: str) -> None:
    sweep, run = keep_experiment("sweep"), keep_run()
    keep_experiment("sweep", state=state, result=None, ended_at=None)
    keep_run(state=state, summary=None, ended_at=None)
    with pytest.raises(InvalidValue, match="waits or plays, and sweep"):
        order_again([Ref("sweep", sweep.pk)], author="ben")
    with pytest.raises(InvalidValue, match="waits or plays, and run"):
        order_again([Ref("run", run.pk)], author="ben")
    another = keep_experiment("sweep", title="another", ended_at=minutes_ago(3))
    assert order_again([Ref("sweep", another.pk)], author="ben")


def test_a_run_against_a_server_that_may_not_be_loaded_is_refused() -> None:
    target = {"url": "http://192.0.2.1/v1", "model": "m", "prompts": "chat", "ignore_eos": False}
    with pytest.raises(InvalidValue, match="FOOTPLATE_LOADTEST_HOSTS"):
        order_again([Ref("run", keep_run(pool="", target=target).pk)], author="ben")


def test_a_plan_that_can_no_longer_be_played_is_refused() -> None:
    old = keep_experiment("sweep")
    Experiment.objects.filter(pk=old.pk).update(plan={"workload": {}})
    with pytest.raises(InvalidValue, match="plan"):
        order_again([Ref("sweep", old.pk)], author="ben")


def test_nothing_is_ordered_on_a_pool_that_is_no_longer_configured() -> None:
    old = keep_experiment("sweep")
    Pool.objects.update(unconfigured_since=minutes_ago(5))
    with pytest.raises(PoolNotConfigured):
        order_again([Ref("sweep", old.pk)], author="ben")


def test_none_and_too_many_are_refused() -> None:
    for refs in ([], [Ref("run", number) for number in range(MOST_AT_ONCE + 1)]):
        with pytest.raises(InvalidValue, match="1 to 10"):
            order_again(refs, author="ben")


def test_what_names_a_result_is_read() -> None:
    assert read_ref("three_ways 12") == Ref("three_ways", 12)


@pytest.mark.parametrize("text", ["", "run", "run x", "run -1", "run ²", "walk 3", "run 1 2", f"run {'9' * 30}"])
def test_what_names_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="and its number"):
        read_ref(text)
