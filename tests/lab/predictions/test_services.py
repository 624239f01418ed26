"""What if?: ordering predictions over a real database, and what is computed."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue, NothingChanges, PoolNotFound, UnknownField
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.costs.model import Fit
from serving.lab.costs.store import keep_cost
from serving.lab.fingerprints import Fingerprint
from serving.lab.models import Prediction, Run, State
from serving.lab.predictions import computing, services
from serving.lab.predictions.results import Basis, predicted_figures, refused_ratio
from serving.lab.predictions.selectors import PredictionView, find_prediction, list_predictions
from serving.lab.predictions.simulating import LEFT_OUT, BrokenOff, simulate_both, simulate_elsewhere
from serving.lab.workloads.arrivals import Steps
from serving.lab.workloads.ready import READY
from serving.telemetry.models import RequestRecord
from tests.lab.workloads.shapes import workload
from tests.telemetry.logged import START, stored
from tests.tuning.engines import beat

HOUR = datetime.timedelta(hours=1)
SHORT = workload(name="short", duration_seconds=4.0)
FIT = Fit(num_steps=500, num_held_back=100, median_error=0.04, p95_error=0.11, total_error=0.01)


def order(redis: Redis, *, pool: str = "default", **changes: Any) -> int:
    facts: dict[str, Any] = {"proposed": {"max_running": 2}, "workload": SHORT, "author": "ann", **changes}
    return services.order_prediction(pool, redis=redis, **facts)


def found(prediction_id: int) -> PredictionView:
    view = find_prediction(prediction_id)
    assert view is not None
    return view


def log_requests(count: int, *, minutes_ago: float = 10) -> None:
    offset = (timezone.now() - datetime.timedelta(minutes=minutes_ago) - START).total_seconds()
    RequestRecord.objects.bulk_create(
        [stored(f"req_{n}", offset + n, prompt_tokens=100, completion_tokens=20) for n in range(count)]
    )


def test_an_ordered_prediction_waits_is_audited_and_the_lab_is_told(pool: str, redis: Redis, woken: list[int]) -> None:
    number = order(redis)
    assert woken == [number]
    view = found(number)
    assert (view.state, view.author, view.predicted) == ("waiting", "ann", None)
    assert view.changes == {"max_running": [Tunables().max_running, 2]}
    event = AuditEvent.objects.get(action="prediction ordered")
    assert (event.subject, event.pool, event.changes["max_running"][1]) == (str(number), pool, 2)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"pool": "nowhere"}, PoolNotFound),
        ({"proposed": {"max_running": 0}}, InvalidValue),
        ({"proposed": {"max_dancing": 1}}, UnknownField),
        ({"proposed": {}}, NothingChanges),
        ({"proposed": {"max_running": Tunables().max_running}}, NothingChanges),
        ({"workload": workload(duration_seconds=-1.0)}, InvalidValue),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    pool: str, redis: Redis, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        order(redis, **changes)
    assert Prediction.objects.count() == 0


def test_without_a_workload_the_last_hours_traffic_is_measured(pool: str, redis: Redis) -> None:
    log_requests(40)
    measured = found(order(redis, workload=None)).workload
    assert measured.name == services.LAST_HOUR
    assert isinstance(measured.arrivals, Steps)
    (only,) = measured.classes
    assert only.tenant == "acme"


def test_runs_of_the_lab_in_the_last_hour_are_said_to_be_in_it(pool: str, redis: Redis) -> None:
    log_requests(40)
    now = timezone.now()
    run = Run.objects.create(
        title="a run",
        workload={},
        target={},
        pool=pool,
        author="ann",
        started_at=now - 3 * HOUR,
        ended_at=now - 2 * HOUR,
    )
    assert services.PLAYED not in found(order(redis, workload=None)).basis.notes
    Run.objects.filter(pk=run.pk).update(ended_at=now - HOUR / 2)
    assert services.PLAYED in found(order(redis, workload=None)).basis.notes
    assert services.PLAYED not in found(order(redis)).basis.notes


def test_too_little_traffic_is_said_and_a_ready_workload_proposed(pool: str, redis: Redis) -> None:
    log_requests(services.LEAST_REQUESTS - 1)
    with pytest.raises(InvalidValue, match=r"29 requests") as caught:
        order(redis, workload=None)
    assert caught.value.field == "workload"
    assert next(iter(READY)) in caught.value.message
    num_moved = RequestRecord.objects.update(arrived_at=timezone.now() - datetime.timedelta(hours=2))
    assert num_moved == services.LEAST_REQUESTS - 1
    with pytest.raises(InvalidValue, match=r" 0 requests"):
        order(redis, workload=None)


def test_no_more_may_wait_than_a_few(pool: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_WAITING", 1)
    order(redis)
    with pytest.raises(InvalidValue, match="at most 1 that wait"):
        order(redis)
    Prediction.objects.update(state=State.FAILED)
    order(redis)


def test_engines_that_live_say_how_many_they_are_and_what_they_have_room_for(pool: str, redis: Redis) -> None:
    beat(redis, "one", kv_blocks_total=400)
    beat(redis, "two", kv_blocks_total=300)
    envelope = found(order(redis)).basis.envelope
    assert (envelope.num_engines, envelope.num_blocks) == (2, 300)


def test_what_the_costs_are_worth_is_said(pool: str, redis: Redis) -> None:
    notes = found(order(redis)).basis.notes
    assert notes == ("No engine was seen to live: the room for keys and values is the default engine's.",)
    beat(redis, "one")
    fitted = msgspec.structs.replace(DEFAULT_COST, source="fitted", fit=FIT)
    on = Fingerprint(model="another", num_engines=1)
    keep_cost(pool, fitted, DEFAULT_ENVELOPE, fingerprint=msgspec.to_builtins(on))
    basis = found(order(redis)).basis
    assert basis.cost.fit == FIT
    (note,) = basis.notes
    assert note.startswith("The costs of steps were fitted before something changed: model: another →")


def basis(**changes: Any) -> Basis:
    return Basis(**{"cost": DEFAULT_COST, "envelope": DEFAULT_ENVELOPE, **changes})


def test_both_sides_get_the_same_requests_and_only_the_values_differ() -> None:
    current = Tunables()
    proposed = current.changed({"max_running": 1, "max_queue_requests": 3})
    result = simulate_both(SHORT, current=current, proposed=proposed, basis=basis(notes=("so it is",)), quotas={})
    before, after = result.current, result.proposed
    assert before.total.num_requests == after.total.num_requests > 20
    assert refused_ratio(before) == 0
    assert refused_ratio(after) > 0.3
    assert predicted_figures(after)["itl_p95"] < predicted_figures(before)["itl_p95"]
    assert before.peak_kv_used_ratio is not None
    assert after.peak_kv_used_ratio is not None
    assert 0 < after.peak_kv_used_ratio < before.peak_kv_used_ratio
    assert simulate_both(SHORT, current=current, proposed=current, basis=basis(), quotas={}).proposed == before
    assert result.notes[0] == "so it is"
    assert any("the default one" in note for note in result.notes)
    assert result.notes[-1] == LEFT_OUT


def test_tenants_are_held_to_their_quotas() -> None:
    terms: dict[str, Any] = {"current": Tunables(), "proposed": Tunables(), "basis": basis()}
    tenant = SHORT.classes[0].tenant
    held = simulate_both(SHORT, **terms, quotas={tenant: Quotas(requests_per_minute=1)})
    assert refused_ratio(held.current) > 0.5 > refused_ratio(simulate_both(SHORT, **terms, quotas={}).current)


def test_how_far_the_fit_is_off_is_among_the_notes() -> None:
    fitted = msgspec.structs.replace(DEFAULT_COST, source="fitted", fit=FIT)
    notes = simulate_both(SHORT, current=Tunables(), proposed=Tunables(), basis=basis(cost=fitted), quotas={}).notes
    assert any("by 4% in the middle, by 11% in one of twenty" in note for note in notes)


@pytest.mark.heavy
def test_a_prediction_is_computed_in_a_process_of_its_own_and_kept(pool: str, redis: Redis) -> None:
    number = order(redis)
    computing.predict(number, ending=threading.Event())
    view = found(number)
    assert (view.state, view.error) == ("finished", "")
    assert view.predicted is not None
    assert view.predicted.proposed.total.num_requests > 20
    kept = Prediction.objects.get(pk=number).predicted
    computing.predict(number, ending=threading.Event())
    assert Prediction.objects.get(pk=number).predicted == kept


@pytest.mark.heavy
def test_what_takes_too_long_or_is_stopped_says_so(pool: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    terms: dict[str, Any] = {"current": Tunables(), "proposed": Tunables(), "basis": basis(), "quotas": {}}
    with pytest.raises(InvalidValue, match="simulated within 0 s"):
        simulate_elsewhere(SHORT, **terms, is_ending=lambda: False, longest_seconds=0.0)
    with pytest.raises(BrokenOff):
        simulate_elsewhere(SHORT, **terms, is_ending=lambda: True, longest_seconds=60.0)
    number = order(redis)
    ending = threading.Event()
    ending.set()
    computing.predict(number, ending=ending)
    view = found(number)
    assert (view.state, view.error) == ("failed", "the process that computed it was stopped")


def test_what_a_dead_process_left_is_settled_and_what_nobody_took_is_told_again(
    pool: str, redis: Redis, woken: list[int]
) -> None:
    lost, waiting = order(redis), order(redis)
    now = timezone.now()
    Prediction.objects.filter(pk=lost).update(state=State.RUNNING, started_at=now)
    woken.clear()
    computing.settle(now=now)
    assert (found(lost).state, woken) == ("running", [])
    computing.settle(now=now + datetime.timedelta(minutes=10))
    assert (found(lost).state, found(lost).error) == ("failed", "the process that computed it is gone")
    assert woken == [waiting]


def test_old_ones_are_forgotten_but_for_those_that_wait(pool: str, redis: Redis) -> None:
    old, new, waiting = (order(redis) for _ in range(3))
    Prediction.objects.filter(pk__in=(old, new)).update(state=State.FINISHED)
    long_ago = timezone.now() - datetime.timedelta(days=9)
    Prediction.objects.filter(pk__in=(old, waiting)).update(created_at=long_ago)
    computing.prune(kept=datetime.timedelta(days=8))
    assert {view.id for view in list_predictions()} == {new, waiting}
