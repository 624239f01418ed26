"""What the seven steps rest on, read from a real database and a real Valkey."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from redis import Redis

from serving.admission.tenants import ensure_tenant
from serving.contracts.errors import PoolNotFound
from serving.lab.fingerprints import Fingerprint
from serving.lab.models import SavedWorkload
from serving.lab.runs.own_keys import end_keys, make_keys, own_prefixes
from serving.lab.steps.evidence import PoolEvidence, Ref
from serving.lab.steps.selectors import read_evidence, read_steps
from serving.lab.workloads.measuring import measure_workload
from serving.lab.workloads.store import change_workload, delete_workload, save_workload
from serving.lab.workloads.workload import Slo
from serving.telemetry.models import RequestRecord
from serving.tuning.services import change
from tests.lab.steps.evidence import (
    ENGINE,
    MIXED,
    OTHER,
    PLANS,
    keep_experiment,
    keep_run,
    minutes_ago,
    summary,
    verdicts,
)
from tests.telemetry.logged import stored

HOUR = datetime.timedelta(hours=1)


def log(count: int, at: datetime.datetime, *, first: str, **changes: Any) -> None:
    facts = {"prompt_tokens": 100, "completion_tokens": 20, "arrived_at": at, **changes}
    RequestRecord.objects.bulk_create([stored(f"{first}_{number}", **facts) for number in range(count)])


def measure(name: str = "ours", *, ago: float = 60, **changes: Any) -> None:
    until = minutes_ago(ago)
    found = measure_workload(pool="default", since=until - HOUR, until=until, name=name, fingerprint=ENGINE, **changes)
    save_workload(found.workload, author="ann", origin="measured", evidence=found.evidence)


def read(redis: Redis) -> PoolEvidence:
    return read_evidence("default", redis=redis)


def test_of_a_new_pool_nothing_is_known_but_its_engine(pool: str, redis: Redis) -> None:
    found = read(redis)
    assert found.now == ENGINE
    assert (found.has_requests, found.measured, found.traffic, found.results) == (False, None, None, ())
    assert {each.state for each in read_steps(pool, redis=redis)} == {"missing"}


def test_another_pool_than_there_is_is_refused(pool: str, redis: Redis) -> None:
    with pytest.raises(PoolNotFound):
        read_steps("nowhere", redis=redis)


@pytest.mark.usefixtures("pool")
def test_without_redis_the_steps_are_read_and_nothing_is_stale() -> None:
    keep_experiment("sweep", fingerprint=msgspec.to_builtins(OTHER))
    away = Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.1)
    steps = read_steps("default", redis=away)
    assert (steps[2].state, steps[6].state) == ("done", "missing")
    assert read_evidence("default", redis=away).now == Fingerprint()


@pytest.mark.usefixtures("pool")
def test_the_newest_measurement_of_the_pool_counts_with_when_and_from_how_many(redis: Redis) -> None:
    log(40, minutes_ago(70), first="a")
    measure("older", ago=62)
    measure("ours")
    save_workload(MIXED, author="ann")
    found = read(redis)
    assert found.measured is not None
    assert (found.measured.name, found.measured.num_requests, found.measured.fingerprint) == ("ours", 40, ENGINE)
    assert found.measured.slo == ""
    delete_workload("ours", author="ann")
    left = read(redis).measured
    assert left is not None
    assert left.name == "older"


@pytest.mark.usefixtures("pool")
def test_an_evidence_that_was_kept_before_fingerprints_is_read(redis: Redis) -> None:
    log(40, minutes_ago(70), first="a")
    measure()
    saved = SavedWorkload.objects.get()
    del saved.evidence["fingerprint"]
    saved.save()
    found = read(redis).measured
    assert found is not None
    assert found.fingerprint == Fingerprint()


@pytest.mark.usefixtures("pool")
def test_objectives_of_a_measured_workload_count_where_somebody_chose_them(redis: Redis) -> None:
    log(40, minutes_ago(70), first="a")
    measure()
    saved = SavedWorkload.objects.get()
    content = msgspec.convert(saved.content, type=type(MIXED))
    own = tuple(msgspec.structs.replace(each, slo=Slo(ttft_ms=700)) for each in content.classes)
    change_workload("ours", msgspec.structs.replace(content, classes=own), author="ann")
    found = read(redis).measured
    assert found is not None
    assert found.slo == "chat TTFT ≤ 700 ms"


@pytest.mark.usefixtures("pool")
def test_the_objectives_in_force_are_those_that_were_stored_last(redis: Redis) -> None:
    assert not read(redis).targets.are_chosen
    change("default", {"slo_ttft_ms": 900.0}, author="ann", reason="", redis=redis)
    targets = read(redis).targets
    assert (targets.ttft_ms, targets.version, targets.are_chosen) == (900.0, 2, True)


@pytest.mark.usefixtures("pool")
def test_requests_after_the_measurement_are_held_against_it_without_those_of_the_lab(redis: Redis) -> None:
    log(40, minutes_ago(70), first="a")
    measure()
    log(50, minutes_ago(10), first="b")
    log(40, minutes_ago(10), first="lab", tenant="lab", prompt_tokens=9000)
    ensure_tenant("acme")
    make_keys(7, ["acme"], seconds=60)
    end_keys(7, redis=redis)
    for prefix in own_prefixes(7):
        log(40, minutes_ago(10), first=prefix, key_prefix=prefix, prompt_tokens=9000)
    calm = read(redis).traffic
    assert calm is not None
    assert (calm.num_requests, calm.prompts) == (50, 0.0)
    log(50, minutes_ago(5), first="c", prompt_tokens=900)
    moved = read(redis).traffic
    assert moved is not None
    assert moved.prompts == pytest.approx(0.5)
    assert read_steps("default", redis=redis)[0].warnings


@pytest.mark.usefixtures("pool")
def test_the_newest_experiments_of_the_pool_are_told_with_what_came_of_them(redis: Redis) -> None:
    keep_experiment("sweep", ended_at=minutes_ago(9))
    newer = keep_experiment("sweep", ended_at=minutes_ago(2))
    keep_experiment("sweep", pool="other")
    test = keep_experiment("overload", result={"verdicts": verdicts("bounds")})
    ways = keep_experiment("three_ways")
    found = read(redis)
    assert [each.ref for each in found.results] == [
        Ref("sweep", newer.pk),
        Ref("overload", test.pk),
        Ref("three_ways", ways.pk),
    ]
    sweep, overload, three_ways = found.results
    assert sweep.says == "The SLO broke at 16; it proposes max_running 4 → 8"
    assert overload.says == "Failed 1 of 2 criteria"
    assert overload.trouble == "Criteria that were not met: The bounds hold."
    assert three_ways.says == "Static costs most."


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("kind", ["sweep", "overload"])
def test_what_was_simulated_only_is_no_evidence_and_is_mentioned(redis: Redis, kind: str) -> None:
    plan = msgspec.structs.replace(PLANS[kind], way="simulated")
    kept = keep_experiment(kind, plan=plan)
    finding = getattr(read(redis), kind)
    assert finding.result is None
    assert f"{kept.pk} was simulated only." in finding.hint


@pytest.mark.usefixtures("pool")
def test_a_run_counts_where_it_has_all_that_is_to_be_seen_together(redis: Redis) -> None:
    blind = keep_run(found=summary(peak_host_memory_bytes=None, queue_ms=None))
    assert read(redis).run.result is None
    assert read(redis).run.hint == f"Run {blind.pk} has no queue times and no memory."
    kept = keep_run(ended_at=minutes_ago(5))
    result = read(redis).run.result
    assert result is not None
    assert result.ref == Ref("run", kept.pk)
    expected = "50.0 output tokens/s, queue time p95 30 ms, TTFT p95 30 ms, ITL p95 30 ms, peak memory 1,024 MiB"
    assert result.says == expected


@pytest.mark.usefixtures("pool")
def test_only_a_run_of_several_classes_is_a_mixture(redis: Redis) -> None:
    keep_run(ended_at=minutes_ago(1))
    assert read(redis).mixture.result is None
    mixed = keep_run(MIXED, ended_at=minutes_ago(5))
    result = read(redis).mixture.result
    assert result is not None
    assert result.ref == Ref("run", mixed.pk)


@pytest.mark.usefixtures("pool")
def test_runs_of_an_experiment_and_of_other_servers_are_no_evidence(redis: Redis) -> None:
    keep_run(MIXED, experiment=keep_experiment("sweep"))
    keep_run(MIXED, pool="")
    found = read(redis)
    assert (found.run.result, found.mixture.result) == (None, None)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("state", ["waiting", "running"])
def test_what_waits_or_plays_is_known(redis: Redis, state: str) -> None:
    keep_experiment("sweep")
    other = keep_experiment("sweep", state=state, result=None, ended_at=None)
    newest = read(redis).sweep.newest
    assert newest is not None
    assert (newest.ref, newest.goes_on) == (Ref("sweep", other.pk), True)


@pytest.mark.usefixtures("pool")
def test_a_failure_is_told_only_where_it_came_after_the_result(redis: Redis) -> None:
    keep_experiment("sweep", state="failed", result=None, error="before", ended_at=minutes_ago(9))
    keep_experiment("sweep", ended_at=minutes_ago(5))
    assert read(redis).sweep.newest is None
    keep_experiment("sweep", state="failed", result=None, error="after", ended_at=minutes_ago(2))
    newest = read(redis).sweep.newest
    assert newest is not None
    assert (newest.error, newest.goes_on) == ("after", False)


@pytest.mark.usefixtures("pool")
def test_results_of_another_model_are_stale(redis: Redis) -> None:
    old = msgspec.to_builtins(OTHER)
    keep_experiment("overload", fingerprint=old)
    keep_run(MIXED, fingerprint=old)
    steps = read_steps("default", redis=redis)
    assert [each.state for each in steps[3:]] == ["stale"] * 4
    assert steps[5].differs == ("model: older → tiny",)
    assert timezone.now() > steps[5].result.ended_at  # type: ignore[union-attr]
