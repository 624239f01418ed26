"""Guardrails as they are stored and ended."""

from __future__ import annotations

import concurrent.futures
import math
from typing import Any, cast

import pytest
from django.db import connections
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.errors import InvalidValue, StaleVersion
from serving.contracts.guardrails import GUARDRAIL_METRICS, GuardrailTerms, is_share
from serving.contracts.ids import PoolName
from serving.telemetry.conditions import METRICS
from serving.tuning import canaries, guardrails, selectors, services
from serving.tuning.models import Guardrail, Pool, TunablesVersion
from tests.tuning.conftest import POOL
from tests.tuning.engines import beat

TERMS = GuardrailTerms(metric="ttft_p95", bound=500, window_seconds=30, watch_seconds=600)


def change(redis: Redis, *, guardrail: GuardrailTerms | None = TERMS, **changes: Any) -> TunablesVersion:
    return services.change(
        POOL, changes or {"max_running": 8}, reason="faster", author="ann", redis=redis, guardrail=guardrail
    )


def state() -> tuple[str, str]:
    guardrail = Guardrail.objects.latest("pk")
    return guardrail.state, guardrail.note


def test_its_metrics_are_those_that_frames_tell_of() -> None:
    for name, title in GUARDRAIL_METRICS.items():
        assert METRICS[name].title == title
        assert METRICS[name].unit == ("share" if is_share(name) else "ms")


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"metric": "luck"}, ["guardrail metric", "luck", "ttft_p95"]),
        ({"bound": -1.0}, ["guardrail bound", "-1", "3600000"]),
        ({"bound": math.nan}, ["guardrail bound", "nan"]),
        ({"metric": "error_ratio", "bound": 1.5}, ["guardrail bound", "1.5", "from 0 to 1"]),
        ({"window_seconds": 4.0}, ["guardrail window", "4.0", "from 5"]),
        ({"watch_seconds": 90_000.0}, ["guardrail watch", "90000", "86400"]),
        ({"window_seconds": 700.0}, ["guardrail window", "at most its watch, 600 s"]),
    ],
)
def test_terms_that_cannot_be_watched_are_refused_with_the_change(
    pool: str, redis: Redis, terms: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidValue) as caught:
        change(redis, guardrail=GuardrailTerms(**{"metric": "ttft_p95", "bound": 500.0, **terms}))
    assert all(word in caught.value.message for word in words)
    assert selectors.current_version(pool).number == 1


def test_it_is_stored_with_its_change_or_not_at_all(pool: str, redis: Redis) -> None:
    change(redis)
    (watched,) = guardrails.watched()
    assert (watched.pool, watched.version) == (pool, 2)
    assert watched.condition.describe() == "TTFT p95 above 500 ms for 30 s"
    with pytest.raises(InvalidValue):
        change(redis, max_running=0)
    assert Guardrail.objects.count() == 1


def test_missed_it_brings_the_values_before_back_and_says_why(pool: str, redis: Redis) -> None:
    change(redis)
    (watched,) = guardrails.watched()
    version = guardrails.take_back(watched.id, value=812.0, redis=redis)
    assert version is not None
    assert (version.number, version.author, version.changes) == (3, "guardrail", {"max_running": [8, 32]})
    assert version.reason == "version 2 rolled back: TTFT p95 was 812 ms, above 500 ms for 30 s"
    assert state() == ("missed", version.reason)
    assert guardrails.watched() == []
    audited = AuditEvent.objects.latest("pk")
    assert (audited.action, audited.actor_kind, audited.reason) == ("guardrail rolled back", "system", version.reason)
    assert redis.xlen(keys.events(PoolName(pool))) == 1
    assert redis.xlen(keys.chronicle()) == 1


def test_a_newer_version_ends_it(pool: str, redis: Redis) -> None:
    change(redis)
    (watched,) = guardrails.watched()
    change(redis, guardrail=None, max_running=9)
    assert state() == ("superseded", "version 3 came before its end")
    assert guardrails.take_back(watched.id, value=812.0, redis=redis) is None
    assert not guardrails.let_pass(watched.id)
    assert selectors.current_version(pool).number == 3


def test_kept_to_the_end_it_passes(pool: str, redis: Redis) -> None:
    change(redis)
    (watched,) = guardrails.watched()
    guardrails.note_missed_since(watched.id, 1000.5)
    assert guardrails.watched()[0].missed_since == 1000.5
    assert guardrails.let_pass(watched.id)
    assert state()[0] == "passed"
    assert guardrails.take_back(watched.id, value=812.0, redis=redis) is None
    assert selectors.current_version(pool).number == 2


def test_of_two_monitors_one_acts(pool: str, redis: Redis) -> None:
    change(redis)
    (watched,) = guardrails.watched()

    def take_back_and_close(_: int) -> int | None:
        try:
            version = guardrails.take_back(watched.id, value=812.0, redis=redis)
            return None if version is None else version.number
        finally:
            connections.close_all()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        numbers = list(threads.map(take_back_and_close, range(4)))
    assert sorted(numbers, key=str) == [3, None, None, None]
    assert [version.number for version in selectors.versions(pool)] == [3, 2, 1]


def test_version_before_that_would_do_no_longer_leaves_it_stuck_and_said(pool: str, redis: Redis) -> None:
    services.ensure_pool("bulk", "a-model")
    services.change(pool, {"long_prompt_pool": "bulk"}, reason="", author="ann", redis=redis)
    change(redis, long_prompt_pool="")
    Pool.objects.filter(name="bulk").delete()
    (watched,) = guardrails.watched()
    assert guardrails.take_back(watched.id, value=812.0, redis=redis) is None
    stuck, note = state()
    assert stuck == "stuck"
    assert "long_prompt_pool must be empty" in note
    assert selectors.current_version(pool).number == 3


def test_missed_by_a_canary_it_takes_the_canary_back(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    services.change(pool, {"max_running": 8}, reason="", author="ann", redis=redis, guardrail=TERMS, canary=True)
    (watched,) = guardrails.watched()
    version = guardrails.take_back(watched.id, value=812.0, redis=redis)
    assert version is not None
    assert selectors.current_tunables(pool).version == version.number == 3
    assert canaries.trial_of(pool) is None
    assert cast(Any, selectors.versions(pool)[1]).canary.ended_by == "guardrail"

    assert version.reason == "version 2 rolled back: TTFT p95 on engine-1 was 812 ms, above 500 ms for 30 s"


def test_called_off_the_version_stays_and_nothing_takes_it_back(pool: str, redis: Redis) -> None:
    change(redis)
    (watched,) = guardrails.watched()
    guardrails.call_off(pool, 2, reason="load test", author="ben")
    assert state() == ("called_off", "called off by ben: load test")
    assert guardrails.take_back(watched.id, value=812.0, redis=redis) is None
    assert selectors.current_version(pool).number == 2
    audited = AuditEvent.objects.latest("pk")
    assert (audited.action, audited.actor, audited.reason) == ("guardrail called off", "ben", "load test")
    for number, why in ((2, "version 2 is watched no longer: its guardrail was called off"), (1, "has no guardrail")):
        with pytest.raises(StaleVersion, match=why):
            guardrails.call_off(pool, number, reason="", author="ben")
    with pytest.raises(InvalidValue, match="reason must be"):
        guardrails.call_off(pool, 2, reason="a\0b", author="ben")


def test_a_canary_taken_to_all_is_watched_from_then_on(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    services.change(pool, {"max_running": 8}, reason="", author="ann", redis=redis, guardrail=TERMS, canary=True)
    (before,) = guardrails.watched()
    guardrails.note_missed_since(before.id, 1000.0)
    canaries.take_to_all(pool, 2, reason="", author="ann", redis=redis)
    (after,) = guardrails.watched()
    assert after.starts_at > before.starts_at
    assert after.missed_since is None


@pytest.mark.parametrize("is_called_off", [False, True])
def test_what_passed_on_one_engine_is_watched_again_on_all_unless_called_off(
    pool: str, redis: Redis, is_called_off: bool
) -> None:
    beat(redis, "engine-1", "engine-2")
    services.change(pool, {"max_running": 8}, reason="", author="ann", redis=redis, guardrail=TERMS, canary=True)
    (before,) = guardrails.watched()
    if is_called_off:
        guardrails.call_off(pool, 2, reason="", author="ben")
    else:
        assert guardrails.let_pass(before.id)
    canaries.take_to_all(pool, 2, reason="", author="ann", redis=redis)
    assert [(watched.id, watched.starts_at > before.starts_at) for watched in guardrails.watched()] == (
        [] if is_called_off else [(before.id, True)]
    )
    guardrail = Guardrail.objects.get()
    if not is_called_off:
        assert (guardrail.ended_at, guardrail.note) == (None, "")


def test_what_a_monitor_saw_of_a_canary_ends_no_watch_that_began_anew_meanwhile(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    services.change(pool, {"max_running": 8}, reason="", author="ann", redis=redis, guardrail=TERMS, canary=True)
    (seen,) = guardrails.watched()
    canaries.take_to_all(pool, 2, reason="", author="ann", redis=redis)
    guardrails.note_missed_since(seen.id, 1000.0, starts_at=seen.starts_at)
    assert not guardrails.let_pass(seen.id, starts_at=seen.starts_at)
    assert guardrails.take_back(seen.id, value=812.0, redis=redis, starts_at=seen.starts_at) is None
    (watched,) = guardrails.watched()
    assert (watched.starts_at > seen.starts_at, watched.missed_since) == (True, None)
    guardrails.note_missed_since(watched.id, 1000.0, starts_at=watched.starts_at)
    assert guardrails.watched()[0].missed_since == 1000.0
    assert guardrails.let_pass(watched.id, starts_at=watched.starts_at)
