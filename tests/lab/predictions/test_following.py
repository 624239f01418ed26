"""What became of predictions: the version that was stored with their values, and what was measured under it."""

from __future__ import annotations

import datetime
import functools
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from redis import Redis

from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.models import Prediction, State
from serving.lab.predictions.following import LEAST_SECONDS, link_versions, measure_predictions
from serving.lab.predictions.results import (
    LEAST_SAMPLES,
    Basis,
    Predicted,
    accuracy_of,
    predicted_figures,
    relative_errors,
)
from serving.lab.predictions.selectors import find_prediction, read_record
from serving.lab.predictions.simulating import simulate_both
from serving.lab.workloads.codec import workload_to_dict
from serving.telemetry.models import Rollup
from serving.telemetry.rollups import encode_content
from serving.tuning import canaries, services
from serving.tuning.effect_keeping import keep_effects
from serving.tuning.models import TunablesVersion
from tests.lab.workloads.shapes import workload
from tests.telemetry.logged import POOL
from tests.telemetry.test_rollups import stretch
from tests.tuning.engines import beat

NOW = timezone.now()
NOW -= datetime.timedelta(seconds=NOW.timestamp() % 60)
MINUTE = datetime.timedelta(minutes=1)
BEFORE = Tunables()
BASIS = Basis(cost=DEFAULT_COST, envelope=DEFAULT_ENVELOPE)
SHORT = workload(name="short", duration_seconds=1.0)


@functools.cache
def predicted_for(proposed: Tunables) -> Predicted:
    return simulate_both(SHORT, current=BEFORE, proposed=proposed, basis=BASIS, quotas={})


def keep(at: datetime.datetime, state: str = State.FINISHED, **proposed: Any) -> Prediction:
    wanted = BEFORE.changed(proposed or {"max_running": 8})
    return Prediction.objects.create(
        pool=POOL,
        workload=workload_to_dict(SHORT),
        current=BEFORE.as_dict(),
        proposed=wanted.as_dict(),
        cost=msgspec.to_builtins(BASIS),
        state=state,
        predicted=msgspec.to_builtins(predicted_for(wanted)),
        author="ann",
        created_at=at,
    )


def store(redis: Redis, at: datetime.datetime, **changes: Any) -> int:
    options = {"canary": changes.pop("canary", False)}
    version = services.change(POOL, changes or {"max_running": 8}, reason="", author="ann", redis=redis, **options)
    TunablesVersion.objects.filter(pk=version.pk).update(created_at=at)
    return int(version.number)


def versions_of(*predictions: Prediction) -> list[int | None]:
    for prediction in predictions:
        prediction.refresh_from_db()
    return [prediction.version for prediction in predictions]


def test_a_version_with_exactly_the_proposed_values_is_what_a_prediction_was_about(pool: str, redis: Redis) -> None:
    other, old = keep(NOW - 20 * MINUTE, max_running=9), keep(NOW - 90 * MINUTE)
    early, late, later = keep(NOW - 30 * MINUTE), keep(NOW - 20 * MINUTE), keep(NOW - 5 * MINUTE)
    failed = keep(NOW - 11 * MINUTE, state=State.FAILED)
    number = store(redis, NOW - 10 * MINUTE)
    assert link_versions(now=NOW) == 1
    assert versions_of(other, old, early, late, later, failed) == [None, None, None, number, None, None]
    assert link_versions(now=NOW) == 0


def test_values_that_are_stored_with_something_else_are_another_change(pool: str, redis: Redis) -> None:
    prediction = keep(NOW - 20 * MINUTE)
    store(redis, NOW - 10 * MINUTE, max_running=8, batch_window_ms=5.0)
    assert link_versions(now=NOW) == 0
    assert versions_of(prediction) == [None]


def measure(at: datetime.datetime, *, stretches: int, ttft_seconds: float) -> None:
    for number in range(stretches):
        content = encode_content(stretch(*[ttft_seconds] * LEAST_SAMPLES))
        starts_at = at + datetime.timedelta(seconds=10 * number)
        Rollup.objects.create(pool=POOL, seconds=10, starts_at=starts_at, content=content)


def applied(redis: Redis, *, stretches: int, ttft_seconds: float = 0.25) -> Prediction:
    at = NOW - 60 * MINUTE
    prediction = keep(at - 5 * MINUTE)
    TunablesVersion.objects.update(created_at=at - 600 * MINUTE)
    store(redis, at)
    measure(at, stretches=stretches, ttft_seconds=ttft_seconds)
    link_versions(now=NOW)
    return prediction


def test_what_was_measured_under_it_is_filled_in_once_it_is_known(pool: str, redis: Redis) -> None:
    prediction = applied(redis, stretches=30)
    assert measure_predictions(now=NOW) == 0
    keep_effects(redis, now=NOW)
    assert measure_predictions(now=NOW) == 1
    assert measure_predictions(now=NOW) == 0
    view = find_prediction(prediction.pk)
    assert view is not None
    assert view.measured is not None
    assert view.predicted is not None
    assert (view.measured.seconds, view.measured.note, view.measured_at) == (300, "", NOW)
    assert view.measured.figures["ttft_p95"] == pytest.approx(250, rel=0.02)
    expected = predicted_figures(view.predicted.proposed)["ttft_p95"] / view.measured.figures["ttft_p95"] - 1
    assert view.errors["ttft_p95"] == pytest.approx(expected)
    record = read_record()
    assert (record.num_made, record.num_applied, record.num_measured) == (1, 1, 1)
    assert {figure.name: figure.median_error for figure in record.figures}["ttft_p95"] == pytest.approx(abs(expected))


def test_a_version_that_was_in_force_for_a_moment_says_nothing(pool: str, redis: Redis) -> None:
    prediction = applied(redis, stretches=LEAST_SECONDS // 10 - 1)
    keep_effects(redis, now=NOW)
    assert measure_predictions(now=NOW) == 1
    view = find_prediction(prediction.pk)
    assert view is not None
    assert view.measured is not None
    assert view.measured.note == "it was in force for 170 s before the next version: 180 s are needed"
    assert (view.measured.figures, read_record().num_measured) == ({}, 0)


def test_what_one_engine_alone_ran_is_not_measured(pool: str, redis: Redis) -> None:
    beat(redis, "one", "two")
    prediction = keep(NOW - 5 * MINUTE)
    number = store(redis, NOW - MINUTE, max_running=8, canary=True)
    assert link_versions(now=NOW) == 1
    assert measure_predictions(now=NOW) == 0
    canaries.take_back(POOL, number, reason="", author="ann", redis=redis)
    assert measure_predictions(now=NOW) == 1
    view = find_prediction(prediction.pk)
    assert view is not None
    assert view.measured is not None
    assert view.measured.note == "it ran on one engine alone, and was taken back"


def test_errors_are_of_figures_that_both_know() -> None:
    errors = relative_errors({"ttft_p95": 110.0, "itl_p95": 9.0}, {"ttft_p95": 100.0, "e2e_p95": 5.0, "itl_p95": 10.0})
    assert errors == pytest.approx({"ttft_p95": 0.1, "itl_p95": -0.1})
    (itl, ttft) = sorted(accuracy_of([errors, {"ttft_p95": -0.3}]), key=lambda each: each.name)
    assert (itl.count, itl.median_error) == (1, pytest.approx(0.1))
    assert (ttft.count, ttft.median_error, ttft.p95_error) == (2, pytest.approx(0.2), pytest.approx(0.29))
