"""An experiment's changes to a pool: stored with its name, waited for, put back, and never against somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.errors import Unavailable, UnknownField
from serving.contracts.guardrails import GuardrailTerms
from serving.lab.experiments.tuning import Overtaken, Retuning, restore
from serving.lab.models import Experiment
from serving.tuning import selectors, services
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
def experiment(pool: str) -> Experiment:
    return Experiment.objects.create(kind="sweep", pool=pool, title="batch size", plan={}, author="ada")


def retuning(experiment: Experiment, redis: Redis, *, while_waiting: Callable[[], Any] = lambda: None) -> Retuning:
    """Each look at the engines takes a second of no real clock."""
    seconds = [0.0]

    def pause(_seconds: float) -> None:
        seconds[0] += 1
        while_waiting()

    return Retuning(experiment.pk, redis, pause=pause, now=lambda: seconds[0], patience_seconds=5)


def running(redis: Redis, version: int, *names: str) -> None:
    beat(redis, *(names or ("engine-1",)), tunables_version=version)


def in_force() -> dict[str, Any]:
    return selectors.current_tunables(POOL).tunables.as_dict()


def test_a_change_is_stored_in_the_experiments_name_and_audited(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99)
    number = retuning(experiment, redis).retune({"max_running": 8}, reason="sweep of max_running: 8")
    version = selectors.current_version(POOL)
    assert (version.number, version.author) == (number, f"ada, sweep {experiment.pk}")
    assert version.reason == "sweep of max_running: 8"
    event = AuditEvent.objects.get(action="tunables changed")
    assert f"sweep {experiment.pk}" in event.actor


def test_it_waits_until_every_engine_runs_the_version(experiment: Experiment, redis: Redis) -> None:
    running(redis, 1, "engine-1", "engine-2")
    waited = []

    def catch_up() -> None:
        waited.append(1)
        running(redis, 2, *("engine-1", "engine-2")[: len(waited)])

    assert retuning(experiment, redis, while_waiting=catch_up).retune({"max_running": 8}, reason="") == 2
    assert len(waited) == 2


def test_an_engine_that_does_not_follow_is_named(experiment: Experiment, redis: Redis) -> None:
    running(redis, 1)
    with pytest.raises(Unavailable, match="version 2 is not run within 5 s by"):
        retuning(experiment, redis).retune({"max_running": 8}, reason="")


def test_a_pool_without_engines_is_no_place_for_experiments(experiment: Experiment, redis: Redis) -> None:
    with pytest.raises(Unavailable, match="no engine of pool default lives"):
        retuning(experiment, redis).retune({"max_running": 8}, reason="")


def test_an_engine_that_is_gone_or_new_ends_the_comparison(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99, "engine-1", "engine-2")
    tuner = retuning(experiment, redis)
    tuner.retune({"max_running": 8}, reason="")
    redis.delete(keys.heartbeat("engine-2"))
    with pytest.raises(Unavailable, match="1 gone, 0 new"):
        tuner.retune({"max_running": 16}, reason="")


def test_what_was_there_before_the_first_change_comes_back(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99)
    before = in_force()
    tuner = retuning(experiment, redis)
    tuner.retune({"max_running": 8}, reason="")
    tuner.retune({"max_running": 16, "max_batch_tokens": 64}, reason="")
    assert "version 1 are back, as version 4" in restore(experiment, redis=redis)
    assert in_force() == before
    assert restore(experiment, redis=redis) == ""
    assert selectors.current_version(POOL).number == 4


def test_what_is_to_come_back_is_kept_before_anything_changes(
    experiment: Experiment, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def die(*_args: Any, **_terms: Any) -> None:
        kept.append(Experiment.objects.get(pk=experiment.pk).retuned)
        raise SystemExit

    monkeypatch.setattr(services, "change", die)
    with pytest.raises(SystemExit):
        retuning(experiment, redis).retune({"max_running": 8}, reason="")
    assert kept == [{"version": 1}]


def test_another_process_puts_back_what_a_killed_player_left(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99)
    retuning(experiment, redis).retune({"max_running": 8}, reason="")
    orphan = Experiment.objects.get(pk=experiment.pk)
    assert "are back" in restore(orphan, redis=redis)
    assert in_force()["max_running"] == 32


def test_it_never_goes_over_somebody_elses_change(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99)
    tuner = retuning(experiment, redis)
    tuner.retune({"max_running": 8}, reason="")
    assert tuner.overtaken() is None
    services.change(POOL, {"max_running": 20}, reason="", author="grace", redis=redis)
    assert tuner.overtaken() == "grace stored version 3 meanwhile"
    with pytest.raises(Overtaken, match="grace"):
        tuner.retune({"max_running": 16}, reason="")
    assert restore(experiment, redis=redis) == "grace stored version 3 meanwhile: that stays"
    assert in_force()["max_running"] == 20


def test_a_change_in_between_two_looks_is_not_gone_over(
    experiment: Experiment, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = services.change

    def overtake(*args: Any, **terms: Any) -> Any:
        change(POOL, {"max_running": 20}, reason="", author="grace", redis=redis)
        return change(*args, **terms)

    monkeypatch.setattr(services, "change", overtake)
    with pytest.raises(Overtaken):
        retuning(experiment, redis).retune({"max_running": 8}, reason="")
    assert "that stays" in restore(experiment, redis=redis)
    assert in_force()["max_running"] == 20


def test_a_pool_on_which_something_is_tried_or_watched_is_left_alone(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99, "engine-1", "engine-2")
    services.change(
        POOL,
        {"max_running": 20},
        reason="",
        author="grace",
        redis=redis,
        guardrail=GuardrailTerms(metric="ttft_p95", bound=100.0),
    )
    with pytest.raises(Overtaken, match="watched by a guardrail"):
        retuning(experiment, redis).retune({"max_running": 8}, reason="")
    services.change(POOL, {"max_running": 24}, reason="", author="grace", redis=redis, canary=True)
    with pytest.raises(Overtaken, match="being tried on one engine"):
        retuning(experiment, redis).retune({"max_running": 8}, reason="")
    assert restore(experiment, redis=redis) == ""
    assert selectors.newest_stored(selectors.find_pool(POOL)).number == 3


def test_values_in_force_need_no_version(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99)
    assert retuning(experiment, redis).retune({"max_running": 32}, reason="") == 1
    assert restore(experiment, redis=redis) == ""


def test_a_refused_change_leaves_nothing_to_put_back(experiment: Experiment, redis: Redis) -> None:
    with pytest.raises(UnknownField):
        retuning(experiment, redis).retune({"nothing": 1}, reason="")
    assert restore(experiment, redis=redis) == ""
    assert selectors.current_version(POOL).number == 1


def test_a_pool_that_is_configured_no_longer_is_said(experiment: Experiment, redis: Redis) -> None:
    running(redis, 99)
    retuning(experiment, redis).retune({"max_running": 8}, reason="")
    services.leave_out_others([])
    assert "were not put back" in restore(experiment, redis=redis)
