"""A version that one engine runs first."""

from __future__ import annotations

from typing import Any, cast

import pytest
from django.db import connection
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.errors import CanaryRuns, InvalidValue, StaleVersion, Unavailable
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, Retune, decode_announced
from serving.contracts.tunables import Tunables
from serving.management.commands.runmonitor import stored_tunables
from serving.telemetry.reconciler import StoredForPool, Trial
from serving.tuning import canaries, selectors, services
from serving.tuning.canary_figures import figures_since, work_of
from serving.tuning.canary_reading import CanaryReading, read_canary
from serving.tuning.living import living_engines
from serving.tuning.models import Canary, TunablesVersion
from tests.telemetry.conftest import snapshot
from tests.tuning.conftest import POOL
from tests.tuning.engines import beat, sent_to, write_frame
from tests.tuning.test_versions import UNREACHABLE

TRIED = Tunables(max_running=8)


def begin(redis: Redis, **options: Any) -> TunablesVersion:
    changes = {"max_running": 8}
    return services.change(POOL, changes, reason="try it", author="ann", redis=redis, canary=True, **options)


def announced(redis: Redis) -> AnnouncedTunables:
    return decode_announced(cast(bytes, redis.get(keys.announced_tunables(POOL))))


def test_one_engine_alone_is_told_and_the_version_before_stays_in_force(pool: str, redis: Redis) -> None:
    services.change(pool, {"max_running": 16}, reason="", author="ann", redis=redis)
    first, second = beat(redis, "engine-1", "engine-2")
    assert begin(redis).number == 3
    assert sent_to(redis, first) == [Retune(3, TRIED)]
    assert sent_to(redis, second) == []
    assert announced(redis).version == selectors.current_tunables(pool).version == 2
    trial = canaries.trial_of(pool)
    assert trial is not None
    assert (trial.engine_id, trial.tunables) == ("engine-1", AnnouncedTunables(3, TRIED))
    assert stored_tunables()[PoolName(pool)] == StoredForPool(selectors.current_tunables(pool), trial)


def test_redis_is_asked_before_the_database_is_locked(pool: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    beat(redis, "engine-1", "engine-2")
    asked_in_transaction = []

    def ask(*given: Any) -> Any:
        asked_in_transaction.append(connection.in_atomic_block)
        return living_engines(*given)

    monkeypatch.setattr("serving.tuning.services.living_engines", ask)
    begin(redis)
    assert asked_in_transaction == [False]


def test_nothing_else_is_changed_while_a_version_is_tried(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    begin(redis)
    for act in (
        lambda: services.change(pool, {"max_running": 9}, reason="", author="ben", redis=redis),
        lambda: services.roll_back(pool, 1, reason="", author="ben", redis=redis),
        lambda: begin(redis),
    ):
        with pytest.raises(CanaryRuns, match="version 2 is being tried on one engine"):
            act()
    assert [version.number for version in selectors.versions(pool)] == [2, 1]


def test_taken_to_all_it_is_in_force_everywhere(pool: str, redis: Redis) -> None:
    _, second = beat(redis, "engine-1", "engine-2")
    begin(redis)
    canaries.take_to_all(pool, 2, reason="good", author="ben", redis=redis)
    assert announced(redis) == selectors.current_tunables(pool) == AnnouncedTunables(2, TRIED)
    assert sent_to(redis, second) == [Retune(2, TRIED)]
    assert canaries.trial_of(pool) is None
    assert Canary.objects.get().ended_by == "ben"
    services.change(pool, {"max_running": 9}, reason="", author="ben", redis=redis)
    assert [event.action for event in AuditEvent.objects.filter(pool=pool).order_by("pk")][-3:] == [
        "canary begun",
        "canary taken to all",
        "tunables changed",
    ]


def test_taken_back_a_newer_version_has_the_values_in_force(pool: str, redis: Redis) -> None:
    first, second = beat(redis, "engine-1", "engine-2")
    begin(redis)
    version = canaries.take_back(pool, 2, reason="", author="ben", redis=redis)
    assert (version.number, version.changes) == (3, {"max_running": [8, 32]})
    assert sent_to(redis, first) == [Retune(2, TRIED), Retune(3, Tunables())]
    assert sent_to(redis, second) == [Retune(3, Tunables())]
    assert announced(redis) == selectors.current_tunables(pool) == AnnouncedTunables(3, Tunables())
    assert AuditEvent.objects.latest("pk").action == "canary taken back"


def test_of_two_operators_who_end_it_the_later_is_told(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    begin(redis)
    canaries.take_back(pool, 2, reason="", author="ann", redis=redis)
    for end in (canaries.take_to_all, canaries.take_back):
        with pytest.raises(StaleVersion, match="version 2 is not being tried any more: version 3 came"):
            end(pool, 2, reason="", author="ben", redis=redis)


def test_fewer_than_two_engines_that_take_work_try_nothing(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1")
    beat(redis, "engine-2", state="draining")
    with pytest.raises(InvalidValue, match="needs two engines of the pool that take work, and there are 1"):
        begin(redis)
    with pytest.raises(Unavailable, match="nobody knows which engines live"):
        begin(UNREACHABLE)
    assert selectors.current_version(pool).number == 1
    assert not Canary.objects.exists()


def test_what_acts_at_the_door_alone_is_tried_on_no_engine(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    with pytest.raises(InvalidValue, match="off: max_queue_requests, slo_ttft_ms acts at the door, for all engines"):
        services.change(
            pool, {"max_queue_requests": 5, "slo_ttft_ms": 50}, reason="", author="ann", redis=redis, canary=True
        )
    assert selectors.current_version(pool).number == 1


def test_a_restarted_engine_takes_the_place_of_the_one_that_is_gone() -> None:
    trial = Trial(EngineId("gone"), AnnouncedTunables(2, TRIED), since=1000.0)
    old, new = snapshot("old", uptime_seconds=500.0), snapshot("new", uptime_seconds=20.0)
    leaving = snapshot("leaving", uptime_seconds=1.0, state="draining")
    assert canaries.successor_of(trial, [old, new, leaving], now=1100.0) == "new"
    assert canaries.successor_of(trial, [old], now=1100.0) is None
    assert canaries.successor_of(trial, [snapshot("gone", uptime_seconds=200.0), new], now=1100.0) is None


def test_a_canary_moves_once_from_the_engine_that_had_it(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    begin(redis)
    assert canaries.move(pool, old=EngineId("engine-1"), new=EngineId("engine-3"))
    assert not canaries.move(pool, old=EngineId("engine-1"), new=EngineId("engine-4"))
    trial = canaries.trial_of(pool)
    assert trial is not None
    assert trial.engine_id == "engine-3"


def test_measuring_begins_anew_with_the_engine_that_it_moved_to(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    begin(redis)
    began = Canary.objects.get().started_at
    alive = beat(redis, "engine-2", "engine-3", steps_total=40)
    assert canaries.move(pool, old=EngineId("engine-1"), new=EngineId("engine-3"), engines=alive)
    moved = Canary.objects.get()
    assert moved.started_at > began
    assert {id_: counted["steps_total"] for id_, counted in moved.baseline.items()} == {"engine-2": 40, "engine-3": 40}


def test_the_engine_that_is_chosen_tries_it(pool: str, redis: Redis) -> None:
    first, second = beat(redis, "engine-1", "engine-2")
    begin(redis, canary_engine="engine-2")
    assert (sent_to(redis, first), sent_to(redis, second)) == ([], [Retune(2, TRIED)])
    trial = canaries.trial_of(pool)
    assert trial is not None
    assert trial.engine_id == "engine-2"


@pytest.mark.parametrize("engine", ["engine-3", "draining", "a\0b"])
def test_an_engine_that_takes_no_work_is_refused_with_those_that_do(pool: str, redis: Redis, engine: str) -> None:
    beat(redis, "engine-1", "engine-2")
    beat(redis, "draining", state="draining")
    with pytest.raises(InvalidValue, match="id of an engine that takes work: engine-1, engine-2, not") as caught:
        begin(redis, canary_engine=engine)
    assert caught.value.param == "canary engine"
    assert selectors.current_version(pool).number == 1


def test_the_comparison_is_of_this_trial_and_of_frames_that_are_new(pool: str, redis: Redis) -> None:
    engines = beat(redis, "engine-1", "engine-2", steps_total=10, step_seconds_total=1.0)
    begin(redis)
    engines = beat(redis, "engine-1", steps_total=30, step_seconds_total=1.4, uptime_seconds=60.0) + engines[1:]
    found = selectors.find_pool(pool)

    def read(**changes: Any) -> CanaryReading:
        write_frame(redis, **{"version": 2, "engine_id": "engine-1", **changes})
        reading = read_canary(found, engines, redis)
        assert reading is not None
        return reading

    reading = read()
    assert (reading.seconds, reading.is_gone) == (30, False)
    assert reading.tried.share.intervals.ttft_seconds.count == 40
    assert reading.others.share.intervals.ttft_seconds.count == 50
    assert (reading.tried.work.num_steps, reading.others.work.step_ms) == (20, None)
    assert reading.tried.work.step_ms == pytest.approx(20.0)
    for other in ({"version": 3}, {"engine_id": "engine-2"}, {"seconds_ago": 60.0}):
        assert read(**other).seconds is None
    canaries.take_to_all(pool, 2, reason="", author="ann", redis=redis)
    assert read_canary(found, engines, redis) is None


def test_of_an_engine_that_was_not_heard_of_at_the_beginning_nothing_is_known(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    begin(redis)
    old, new = (
        snapshot("old", steps_total=90_000, uptime_seconds=9000.0),
        snapshot("new", steps_total=40, uptime_seconds=20.0),
    )
    figures = figures_since(Canary.objects.get().baseline, [old, new], canary=EngineId("engine-1"), seconds=30.0)
    assert {engine.engine_id: engine.work.num_steps for engine in figures} == {"new": 40, "old": 0}
    assert work_of(figures).seconds == 20.0
