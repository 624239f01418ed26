"""What the server is asked about a run that was played: its log, its pool at rest, and its engines' steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from redis import Redis

from serving.admission.tenants import ensure_tenant
from serving.contracts import keys
from serving.contracts.errors import InvalidValue, Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.messages import encode
from serving.contracts.steps import StepBatch, encode_steps
from serving.lab.experiments.bench import Bench
from serving.lab.models import Experiment, Run, State
from serving.lab.packing import pack_outcomes
from serving.lab.runs import services
from serving.lab.runs.evidence import gather_evidence
from serving.lab.runs.foreground import play_in_foreground
from serving.lab.runs.own_keys import make_keys, own_prefixes
from serving.telemetry.models import RequestRecord
from serving.tuning.services import ensure_pool
from tests.lab.experiments.overloading import refused, served
from tests.lab.experiments.test_pictures import a_batch, a_row
from tests.telemetry.conftest import snapshot

POOL = PoolName("default")


@pytest.fixture
def redis(valkey: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    settings.REDIS_URL = valkey
    monkeypatch.setattr(services, "wake", lambda: None)
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def pool(transactional_db: None, redis: Redis) -> str:
    beat(redis)
    return ensure_pool(POOL, "a-model").name


def beat(redis: Redis, **changes: Any) -> None:
    engine = msgspec.structs.replace(snapshot("one"), **{"num_running": 0, "num_waiting": 0, **changes})
    redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    redis.zadd(keys.engines(POOL), {engine.engine_id: 1})


def a_run() -> Run:
    """One that was played: a request was served and one refused."""
    ensure_tenant("lab")
    run: Run = Run.objects.create(
        title="r",
        workload={},
        target={},
        pool=POOL,
        state=State.FINISHED,
        started_at=timezone.now(),
        outcomes=pack_outcomes([served(0, 0.0), refused(1, 0.1)]),
        author="ann",
    )
    make_keys(run.pk, (), seconds=60)
    return run


def log(run: Run, outcome: str, *, key_prefix: str | None = None, number: int = 0) -> None:
    (prefix,) = own_prefixes(run.pk)
    RequestRecord.objects.create(
        request_id=f"{outcome}-{number}-{key_prefix}",
        pool=POOL,
        key_prefix=prefix if key_prefix is None else key_prefix,
        arrived_at=timezone.now(),
        outcome=outcome,
        e2e_seconds=0.1,
    )


class Patience:
    """Owns a clock that `pause` moves, and what happens at each pause."""

    def __init__(self, *acts: Any) -> None:
        self.seconds = 0.0
        self._acts = list(acts)

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        if self._acts:
            self._acts.pop(0)()

    def now(self) -> float:
        return self.seconds


def test_it_waits_until_the_log_is_whole_and_the_pool_at_rest(pool: str, redis: Redis) -> None:
    run = a_run()
    log(run, "finished")
    beat(redis, num_running=1)
    patience = Patience(lambda: log(run, "refused"), lambda: beat(redis))
    found = gather_evidence(run, redis=redis, pause=patience.pause, now=patience.now)
    assert patience.seconds == 1.0
    assert found.logged == {"finished": 1, "refused": 1}
    assert found.rest is not None
    assert found.rest.is_empty
    assert [each.ending for each in found.outcomes] == ["finished", "refused"]


def test_what_does_not_come_to_rest_is_told_when_patience_is_over(pool: str, redis: Redis) -> None:
    run = a_run()
    redis.hset(keys.permit_weights(POOL), mapping={"total:requests": 2, "total:tokens": 64})
    patience = Patience()
    found = gather_evidence(run, redis=redis, pause=patience.pause, now=patience.now, patience_seconds=3.0)
    assert patience.seconds == 3.0
    assert found.rest is not None
    assert (found.rest.permits_requests, found.rest.permits_tokens, found.rest.has_others) == (2, 64, False)
    assert found.logged == {}


def test_requests_of_others_are_not_counted_but_told_of(pool: str, redis: Redis) -> None:
    run = a_run()
    for number, outcome in enumerate(("finished", "refused")):
        log(run, outcome)
        log(run, outcome, key_prefix="another", number=number)
    found = gather_evidence(run, redis=redis, pause=lambda _seconds: None)
    assert found.logged == {"finished": 1, "refused": 1}
    assert found.rest is not None
    assert found.rest.has_others


def test_the_engines_steps_since_the_run_began_are_read_the_oldest_first(pool: str, redis: Redis) -> None:
    run = a_run()
    log(run, "finished")
    log(run, "refused")
    engine = snapshot("one").engine_id
    assert run.started_at is not None
    began = run.started_at.timestamp()
    # The first is of what was played before.
    for step, unix_seconds in ((1, began - 5), (2, began + 1), (3, began + 2)):
        row = msgspec.structs.replace(a_row(step, decoding=[0]), unix_seconds=unix_seconds)
        batch: StepBatch = a_batch(row, engine=engine)
        redis.xadd(keys.steps(engine), {keys.FIELD: encode_steps(batch)}, id=f"{step}-0")
    found = gather_evidence(run, redis=redis, pause=lambda _seconds: None)
    assert [batch.rows[0].step for batch in found.steps] == [2, 3]


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """A kind of experiment that notes its plan, and raises where that says so."""
    plans: list[Mapping[str, Any]] = []

    def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        plans.append(plan)
        if plan.get("fails"):
            raise InvalidValue("plan", "x", "another")
        return {"pool": bench.pool}

    monkeypatch.setattr("serving.lab.runs.working.player_of", lambda _kind: play)
    return plans


def played(plan: Mapping[str, Any], redis: Redis) -> Mapping[str, Any]:
    return play_in_foreground("kind", pool=POOL, title="t", plan=plan, author="ann", redis=redis)


def test_an_experiment_in_the_foreground_is_kept_like_any_other(pool: str, redis: Redis, kind: list[Any]) -> None:
    assert played({"a": 1}, redis) == {"pool": "default"}
    kept = Experiment.objects.get()
    assert (kept.state, kept.plan, kept.author, kept.result) == (State.FINISHED, {"a": 1}, "ann", {"pool": "default"})
    assert kind == [{"a": 1}]


def test_an_experiment_in_the_foreground_that_fails_says_why(pool: str, redis: Redis, kind: list[Any]) -> None:
    with pytest.raises(Unavailable, match="failed: plan must be another"):
        played({"fails": True}, redis)
    assert Experiment.objects.get().state == State.FAILED


def test_two_things_of_the_lab_do_not_play_on_one_pool(pool: str, redis: Redis, kind: list[Any]) -> None:
    Run.objects.create(title="r", workload={}, target={}, pool=POOL, state=State.RUNNING, author="ann")
    with pytest.raises(InvalidValue, match="nothing else of the Lab works"):
        played({}, redis)
    assert not Experiment.objects.exists()


def test_signals_mean_what_they_did_before_once_it_is_over(pool: str, redis: Redis, kind: list[Any]) -> None:
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    played({}, redis)
    assert signal.getsignal(signal.SIGTERM) is before
