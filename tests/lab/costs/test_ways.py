"""What a request takes on its way to the engine, told apart from what it waits there."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.utils import timezone

from serving.lab.costs.default import DEFAULT_COST
from serving.lab.costs.ways import LEAST_ALONE, Way, read_way
from serving.telemetry.models import RequestRecord

pytestmark = pytest.mark.django_db

BEGAN = timezone.now() - datetime.timedelta(hours=1)


def a_request(at: float, queue_seconds: float | None, *, e2e_seconds: float = 0.5, pool: str = "default") -> None:
    values: dict[str, Any] = {"pool": pool, "model": "m", "endpoint": "chat", "outcome": "finished"}
    RequestRecord.objects.create(
        request_id=f"{pool}-{at}",
        arrived_at=BEGAN + datetime.timedelta(seconds=at),
        queue_seconds=queue_seconds,
        e2e_seconds=e2e_seconds,
        **values,
    )


def test_those_tell_it_that_came_while_nobody_else_was_there() -> None:
    for number in range(LEAST_ALONE + 1):
        a_request(10.0 * number, 0.004)
        for other in range(1, 6):
            a_request(10.0 * number + 0.01 * other, 0.001 * other)
    assert read_way("default") == Way(seconds=0.004, num_requests=LEAST_ALONE)


def test_where_somebody_is_always_there_the_shortest_waits_come_nearest() -> None:
    for number in range(100):
        a_request(0.1 * number, 0.005 + 0.001 * number)
    way = read_way("default")
    assert way.num_requests == 100
    assert way.seconds == pytest.approx(0.0149)


def test_waits_of_an_overloaded_pool_tell_nothing() -> None:
    for number in range(100):
        a_request(0.1 * number, 3.0, e2e_seconds=5.0)
    assert read_way("default") == Way(seconds=DEFAULT_COST.request_seconds, num_requests=0)


def test_other_pools_and_refusals_tell_nothing() -> None:
    a_request(0, 0.001, pool="other")
    a_request(1, None)
    assert read_way("default").num_requests == 0
