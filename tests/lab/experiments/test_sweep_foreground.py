"""A sweep in the foreground: kept as an experiment, and the pool is put back however it ends."""

from __future__ import annotations

import datetime
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from redis import Redis

from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import InvalidValue
from serving.lab.experiments.bench import Stopped
from serving.lab.experiments.others import read_others
from serving.lab.experiments.sweep_foreground import sweep_in_foreground
from serving.lab.experiments.sweep_plan import Dimension, SweepPlan
from serving.lab.experiments.sweep_results import SweepResult
from serving.lab.experiments.sweep_selectors import find_sweep, list_sweeps
from serving.lab.models import Experiment
from serving.lab.playing.target import Target
from serving.telemetry.models import RequestRecord
from serving.tuning import selectors, services
from tests.lab.experiments.sweeping import a_workload
from tests.tuning.conftest import POOL
from tests.tuning.engines import beat

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def pool(transactional_db: None) -> str:
    return services.ensure_pool(POOL, "a-model").name


@pytest.fixture
def nobody() -> Iterator[Target]:
    """Where nobody listens: every request fails at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield Target(url=f"http://127.0.0.1:{taken.getsockname()[1]}", model="a-model", key="a key", pool=POOL)


def sweep(
    redis: Redis, target: Target, *, say: Callable[[str], None] = lambda _words: None, settle_seconds: float = 0
) -> SweepResult:
    beat(redis, "engine-1", tunables_version=99)
    plan = SweepPlan(
        workload=msgspec.structs.replace(a_workload(clients=1), num_requests=2),
        dimensions=(Dimension(name="max_running", values=(4, 8)),),
        repeats=1,
        settle_seconds=settle_seconds,
    )
    return sweep_in_foreground(plan, POOL, target, own_key_prefixes=(), author=COMMAND_LINE, redis=redis, say=say)


def test_it_is_kept_as_an_experiment_and_the_pool_goes_back(pool: str, redis: Redis, nobody: Target) -> None:
    result = sweep(redis, nobody)
    (kept,) = list_sweeps()
    assert (kept.state, kept.result, kept.author) == ("finished", result, "command line")
    assert [point.num_failed for point in result.legs[0].points] == [2, 2]
    assert not any(point.keeps_slo for point in result.legs[0].points)
    current = selectors.current_version(POOL)
    assert (current.number, current.values["max_running"]) == (4, 32)


def test_interrupted_it_puts_the_pool_back_and_keeps_its_points(pool: str, redis: Redis, nobody: Target) -> None:
    def interrupt(words: str) -> None:
        if words.startswith("max_running 8"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(redis, nobody, say=interrupt)
    (kept,) = list_sweeps()
    assert (kept.state, kept.error) == ("stopped", "interrupted")
    assert [point.value for point in kept.legs[0].points] == [4]
    assert selectors.current_version(POOL).values["max_running"] == 32


def test_a_second_experiment_on_the_pool_is_refused(pool: str, redis: Redis, nobody: Target) -> None:
    Experiment.objects.create(kind="overload", pool=POOL, title="", plan={}, author="ada", state="running")
    with pytest.raises(InvalidValue, match="on which nothing else of the Lab works"):
        sweep(redis, nobody)
    assert selectors.current_version(POOL).number == 1


def test_asked_to_stop_in_the_console_it_puts_the_pool_back(pool: str, redis: Redis, nobody: Target) -> None:
    def ask(words: str) -> None:
        Experiment.objects.update(stop_asked=True)

    with pytest.raises(Stopped):
        sweep(redis, nobody, say=ask, settle_seconds=0.01)
    (kept,) = list_sweeps()
    assert kept.state == "stopped"
    assert selectors.current_version(POOL).values["max_running"] == 32


def test_a_pool_without_engines_fails_and_says_so(pool: str, redis: Redis, nobody: Target) -> None:
    def vanish(_words: str) -> None:
        redis.flushall()

    with pytest.raises(InvalidValue, match="of which an engine lives"):
        sweep(redis, nobody, say=vanish)
    (kept,) = list_sweeps()
    assert kept.state == "failed"
    assert "of which an engine lives" in kept.error
    assert selectors.current_version(POOL).values["max_running"] == 32


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
