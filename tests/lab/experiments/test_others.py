"""What a pool's other traffic came to while an experiment plays, and which experiments are sweeps."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.utils import timezone

from serving.lab.experiments.others import read_others
from serving.lab.experiments.sweep_selectors import find_sweep
from serving.lab.models import Experiment
from serving.telemetry.models import RequestRecord
from serving.tuning import services
from tests.tuning.conftest import POOL

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pool(transactional_db: None) -> str:
    return services.ensure_pool(POOL, "a-model").name


def test_there_is_no_sweep_of_another_kind_or_number(pool: str) -> None:
    other = Experiment.objects.create(kind="overload", pool=POOL, title="", plan={}, author="ada")
    assert find_sweep(other.pk) is None
    assert find_sweep(10**6) is None


def a_request(name: str, *, seconds_ago: float = 5, **changes: Any) -> None:
    values: dict[str, Any] = {
        "pool": POOL,
        "model": "a-model",
        "endpoint": "chat",
        "outcome": "finished",
        "arrived_at": timezone.now() - datetime.timedelta(seconds=seconds_ago),
        "ttft_seconds": 0.5,
        "e2e_seconds": 1.0,
    }
    RequestRecord.objects.create(request_id=name, **{**values, **changes})


def test_the_other_traffic_is_that_of_other_keys_in_the_last_minute(pool: str) -> None:
    a_request("own", key_prefix="0123456789ab", ttft_seconds=9.0)
    a_request("old", seconds_ago=70, ttft_seconds=9.0)
    a_request("elsewhere", pool="other", ttft_seconds=9.0)
    a_request("other")
    a_request("of nobody", key_prefix="ba9876543210", outcome="refused", ttft_seconds=None)
    a_request("given up", outcome="aborted", ttft_seconds=None)
    readings = read_others(POOL, own_key_prefixes={"0123456789ab"}, now=timezone.now())
    assert (readings["ttft_p95"].value, readings["ttft_p95"].num_samples) == (500.0, 1)
    assert (readings["refused_ratio"].value, readings["refused_ratio"].num_samples) == (0.5, 2)
    assert "itl_p95" not in readings


def test_without_other_traffic_nothing_is_told(pool: str) -> None:
    assert read_others(POOL, own_key_prefixes=(), now=timezone.now()) == {}
