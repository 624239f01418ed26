"""Runs and experiments as the Lab's process takes, plays, ends and settles them: real database, real Valkey, a scripted
server."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from redis import Redis

from serving.admission.models import ApiKey
from serving.admission.tenants import ensure_tenant
from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.errors import InvalidValue, PoolNotFound
from serving.contracts.messages import encode
from serving.lab.experiments import kinds
from serving.lab.experiments.bench import Bench
from serving.lab.models import Experiment, Run, State
from serving.lab.playing.target import Target
from serving.lab.runs import services, working
from serving.lab.runs.selectors import find_run, list_runs, outcomes_of
from serving.lab.runs.taking import take_next
from serving.tuning.selectors import current_version
from serving.tuning.services import ensure_pool
from tests.lab.runs.scripted import POOL, WORKLOAD, Handler
from tests.telemetry.conftest import snapshot


def work_off(redis: Redis) -> None:
    working.work_off(redis=redis, ending=threading.Event())


def test_a_run_is_played_kept_and_its_keys_are_ended(pool: str, redis: Redis, handler: type[Handler]) -> None:
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")
    work_off(redis)
    found = find_run(run.pk)
    assert found is not None
    assert (found.state, found.error, found.tunables_version) == (State.FINISHED, "", 1)
    assert found.summary is not None
    assert found.summary.total.num_finished == 5
    assert found.fingerprint["num_engines"] == 1
    assert len(outcomes_of(run.pk)) == 5
    (key,) = ApiKey.objects.all()
    assert key.revoked_at is not None
    assert key.tenant.name == "lab"
    assert len(set(handler.seen)) == 1
    assert key.prefix in handler.seen[0]
    kept = json.dumps([found.target, found.workload, found.progress])
    assert handler.seen[0].split(key.prefix)[1] not in kept
    assert AuditEvent.objects.filter(action="run ordered", actor="ann").count() == 1


def test_repeats_differ_in_their_seed_alone(pool: str, redis: Redis) -> None:
    runs = services.order_run(WORKLOAD, pool=pool, author="ann", repeats=3)
    assert [run.workload["seed"] for run in runs] == [1, 2, 3]
    assert [each.id for each in list_runs()] == [run.pk for run in reversed(runs)]


def test_tenants_that_there_are_send_with_keys_of_their_own(pool: str, redis: Redis, handler: type[Handler]) -> None:
    of_tenant = msgspec.structs.replace(WORKLOAD.classes[0], tenant="acme")
    named = msgspec.structs.replace(WORKLOAD, classes=(of_tenant,))
    with pytest.raises(InvalidValue, match="acme"):
        services.order_run(named, pool=pool, author="ann")
    ensure_tenant("acme")
    services.order_run(named, pool=pool, author="ann")
    work_off(redis)
    prefix = ApiKey.objects.get(tenant__name="acme").prefix
    assert all(prefix in seen for seen in handler.seen)
    assert not ApiKey.objects.filter(revoked_at=None).exists()


def test_a_run_whose_every_request_fails_has_failed_and_says_why(
    pool: str, redis: Redis, handler: type[Handler]
) -> None:
    handler.status = 500
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")
    work_off(redis)
    run.refresh_from_db()
    assert (run.state, run.error) == (State.FAILED, "no request finished: broken: no")


def test_one_at_a_time_plays_on_a_pool_in_the_order_of_their_orders(pool: str, redis: Redis) -> None:
    ensure_pool("other", "a-model")
    first, second = services.order_run(WORKLOAD, pool=pool, author="ann", repeats=2)
    (elsewhere,) = services.order_run(WORKLOAD, pool="other", author="ann")
    taken = [take_next() for _ in range(3)]
    assert [row.pk for row in taken if row is not None] == [first.pk, elsewhere.pk]
    Run.objects.filter(pk=first.pk).update(state=State.FINISHED)
    assert (row := take_next()) is not None
    assert row.pk == second.pk


def test_a_waiting_run_is_stopped_at_once_and_never_played(pool: str, redis: Redis, handler: type[Handler]) -> None:
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")
    services.stop_run(run.pk, author="bob")
    work_off(redis)
    run.refresh_from_db()
    assert run.state == State.STOPPED
    assert handler.seen == []
    with pytest.raises(InvalidValue, match="one that plays or waits"):
        services.stop_run(run.pk, author="bob")


@pytest.mark.parametrize(("way", "state"), [("asked", State.STOPPED), ("process", State.FAILED)])
@pytest.mark.waits
def test_a_run_that_plays_is_stopped_within_seconds(
    pool: str, redis: Redis, handler: type[Handler], way: str, state: str
) -> None:
    handler.held = threading.Event()
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")
    ending = threading.Event()
    player = threading.Thread(target=lambda: working.work_off(redis=redis, ending=ending))
    player.start()
    while not handler.seen:
        player.join(0.02)
    if way == "asked":
        services.stop_run(run.pk, author="bob")
    else:
        ending.set()
    player.join(20)
    handler.held.set()
    assert not player.is_alive()
    run.refresh_from_db()
    assert run.state == state
    assert not ApiKey.objects.filter(revoked_at=None).exists()


@pytest.mark.waits
def test_a_run_that_others_have_ended_stays_as_they_said(pool: str, redis: Redis, handler: type[Handler]) -> None:
    handler.held = threading.Event()
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")
    player = threading.Thread(target=lambda: work_off(redis))
    player.start()
    while not handler.seen:
        player.join(0.02)
    Run.objects.filter(pk=run.pk).update(state=State.FAILED, error="its player is gone")
    player.join(20)
    handler.held.set()
    assert not player.is_alive()
    run.refresh_from_db()
    assert (run.state, run.error, run.summary, run.outcomes) == (State.FAILED, "its player is gone", None, None)


def test_an_experiment_that_others_have_ended_changes_nothing_more(
    pool: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        Experiment.objects.update(state=State.FAILED, error="its player is gone", ended_at=timezone.now())
        bench.retune({"max_running": 5}, reason="to see")
        return {"was": "played"}

    monkeypatch.setattr(working, "player_of", lambda kind: play)
    experiment = services.order_experiment("sweep", pool=pool, title="places", plan={}, author="ann")
    work_off(redis)
    experiment.refresh_from_db()
    assert (experiment.state, experiment.error, experiment.result) == (State.FAILED, "its player is gone", None)
    assert current_version(POOL).number == 1


@pytest.mark.parametrize(
    ("asked", "ended"), [(True, (State.STOPPED, "")), (False, (State.FAILED, working.WAS_STOPPED))]
)
def test_who_stopped_an_experiment_is_told_of_it_and_of_its_runs(
    pool: str, redis: Redis, monkeypatch: pytest.MonkeyPatch, asked: bool, ended: tuple[str, str]
) -> None:
    """The process ends in both cases: an operator who has asked for a stop before is who stopped it."""
    ending = threading.Event()

    def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        experiment = Experiment.objects.get()
        experiment.runs.create(title="a run", workload={}, target={}, pool=POOL, state=State.RUNNING, author="ann")
        Experiment.objects.update(stop_asked=asked)
        ending.set()
        bench.pause(1)
        return {}

    monkeypatch.setattr(working, "player_of", lambda kind: play)
    experiment = services.order_experiment("sweep", pool=pool, title="places", plan={}, author="ann")
    working.work_off(redis=redis, ending=ending)
    experiment.refresh_from_db()
    assert (experiment.state, experiment.error) == ended
    run = Run.objects.get()
    assert run.state == ended[0]
    assert run.error == (ended[1] or "its experiment ended")


def test_what_its_player_left_is_settled(pool: str, redis: Redis) -> None:
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")
    assert take_next() is not None
    working.settle_orphans(redis=redis)
    run.refresh_from_db()
    assert run.state == State.RUNNING
    long_ago = timezone.now() - datetime.timedelta(seconds=working.SILENT_SECONDS + 5)
    Run.objects.update(beaten_at=long_ago)
    working.settle_orphans(redis=redis)
    run.refresh_from_db()
    assert (run.state, run.error) == (State.FAILED, "its player is gone")


def test_an_experiment_plays_runs_changes_tunables_and_puts_them_back(
    pool: str, redis: Redis, handler: type[Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        engine = snapshot("one", tunables_version=9)
        redis.set(keys.heartbeat(engine.engine_id), encode(engine))
        bench.retune({"max_running": plan["places"]}, reason="to see")
        seen.append(current_version(POOL).values["max_running"])
        bench.tell({"doing": "plays"})
        summary = bench.play(WORKLOAD, title="a point", point={"max_running": plan["places"]})
        return {"num_finished": summary.total.num_finished}

    monkeypatch.setattr(working, "player_of", lambda kind: play)
    experiment = services.order_experiment("sweep", pool=pool, title="places", plan={"places": 5}, author="ann")
    work_off(redis)
    experiment.refresh_from_db()
    assert (experiment.state, experiment.error, experiment.result) == (State.FINISHED, "", {"num_finished": 5})
    assert seen == [5]
    assert current_version(POOL).values["max_running"] == 32
    (run,) = experiment.runs.all()
    assert (run.point, run.state, run.tunables["max_running"]) == ({"max_running": 5}, State.FINISHED, 5)


def test_an_experiment_that_fails_says_why_and_puts_back(
    pool: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        engine = snapshot("one", tunables_version=9)
        redis.set(keys.heartbeat(engine.engine_id), encode(engine))
        bench.retune({"max_running": 5}, reason="to see")
        raise RuntimeError("no luck")

    monkeypatch.setattr(working, "player_of", lambda kind: play)
    experiment = services.order_experiment("sweep", pool=pool, title="places", plan={}, author="ann")
    work_off(redis)
    experiment.refresh_from_db()
    assert experiment.state == State.FAILED
    assert experiment.error.startswith("RuntimeError: no luck; the tunables of version 1 are back")
    assert current_version(POOL).values["max_running"] == 32


def test_what_could_not_be_put_back_is_put_back_later(pool: str, redis: Redis) -> None:
    experiment = services.order_experiment("sweep", pool=pool, title="", plan={}, author="ann")
    Experiment.objects.filter(pk=experiment.pk).update(state=State.FAILED, retuned={"version": 1})
    working.settle_orphans(redis=redis)
    experiment.refresh_from_db()
    assert experiment.retuned is None


def test_old_runs_are_forgotten(pool: str, redis: Redis) -> None:
    kept, old = services.order_run(WORKLOAD, pool=pool, author="ann", repeats=2)
    Run.objects.filter(pk=kept.pk).update(ended_at=timezone.now())
    Run.objects.filter(pk=old.pk).update(ended_at=timezone.now() - datetime.timedelta(days=9))
    working.prune(kept=datetime.timedelta(days=7))
    assert [run.pk for run in Run.objects.all()] == [kept.pk]


def test_only_named_servers_are_loaded_and_their_keys_are_used_once(
    pool: str, redis: Redis, settings: Any, handler: type[Handler]
) -> None:
    foreign = Target(url=settings.FOOTPLATE_LAB_URL, model="m", key="secret-key")
    with pytest.raises(InvalidValue, match="FOOTPLATE_LOADTEST_HOSTS names: none"):
        services.order_run(WORKLOAD, author="ann", foreign=foreign)
    settings.FOOTPLATE_LOADTEST_HOSTS = frozenset({"127.0.0.1"})
    (run,) = services.order_run(WORKLOAD, author="ann", foreign=foreign)
    assert "secret-key" not in json.dumps(run.target)
    work_off(redis)
    run.refresh_from_db()
    assert run.state == State.FINISHED
    assert set(handler.seen) == {"Bearer secret-key"}
    assert services.take_key(run.pk, redis=redis) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repeats": 0}, "repeats"),
        ({"repeats": 21}, "repeats"),
        ({"title": "x" * 201}, "title"),
    ],
)
def test_what_cannot_be_ordered_is_refused_by_name(
    pool: str, redis: Redis, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        services.order_run(WORKLOAD, pool=pool, author="ann", **changes)
    assert caught.value.param == words


def test_what_there_is_not_is_not_played(pool: str, redis: Redis) -> None:
    with pytest.raises(PoolNotFound):
        services.order_run(WORKLOAD, pool="nowhere", author="ann")
    with pytest.raises(InvalidValue):
        services.order_experiment("luck", pool=pool, title="", plan={}, author="ann")
    long = msgspec.structs.replace(WORKLOAD, duration_seconds=90_000.0)
    with pytest.raises(InvalidValue, match="really played"):
        services.order_run(long, pool=pool, author="ann")


def test_every_kind_of_experiment_that_is_offered_can_be_played() -> None:
    for kind in kinds.KINDS:
        assert callable(kinds.player_of(kind))
