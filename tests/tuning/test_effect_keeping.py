"""What was measured around a version, which stays when that from which it is read is pruned."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.utils import timezone
from redis import Redis

from serving.config.celery import app
from serving.config.job_outages import JobOutages
from serving.telemetry import chronicle
from serving.telemetry.models import Rollup
from serving.telemetry.rollups import StretchEntry, encode_content, encode_entry
from serving.tuning import canaries, selectors, services
from serving.tuning.effect_keeping import SETTLED, KeptEffect, keep_effects, kept_effects
from serving.tuning.effects import LOOK
from serving.tuning.models import TunablesVersion, VersionEffect
from tests.telemetry.test_rollups import stretch
from tests.tuning.conftest import POOL
from tests.tuning.engines import beat

MINUTE = datetime.timedelta(minutes=1)
NOW = timezone.now()
NOW -= datetime.timedelta(seconds=NOW.timestamp() % 60)


@pytest.fixture
def changed_at(pool: str, redis: Redis) -> datetime.datetime:
    """When version 2 was stored: an hour ago, with a minute measured on either side of it."""
    at = NOW - 60 * MINUTE
    services.change(pool, {"max_running": 8}, reason="", author="ann", redis=redis)
    date(1, at - 60 * MINUTE)
    date(2, at)
    measure(at - 5 * MINUTE, 0.4)
    measure(at + 5 * MINUTE, 0.2, 0.2)
    return at


def date(number: int, at: datetime.datetime) -> None:
    TunablesVersion.objects.filter(number=number).update(created_at=at)


def measure(at: datetime.datetime, *ttfts: float) -> None:
    Rollup.objects.create(pool=POOL, seconds=10, starts_at=at, content=encode_content(stretch(*ttfts)))


def kept() -> dict[int, KeptEffect]:
    return kept_effects(selectors.versions(POOL))


def ttfts(effect: KeptEffect) -> tuple[Any, Any]:
    sides = (effect.before, effect.after)
    return tuple(None if side is None else side.intervals.ttft_seconds.count for side in sides)  # type: ignore[return-value]


def test_once_it_is_over_it_stays_whatever_is_pruned(changed_at: datetime.datetime, redis: Redis) -> None:
    assert keep_effects(redis, now=NOW) == 1
    Rollup.objects.all().delete()
    (effect,) = kept().values()
    assert ttfts(effect) == (1, 2)
    assert effect.after is not None
    assert effect.after.intervals.ttft_seconds.p95 == pytest.approx(0.2, rel=0.01)
    assert (keep_effects(redis, now=NOW), VersionEffect.objects.count()) == (0, 1)


def test_nothing_is_kept_before_all_can_be_known(changed_at: datetime.datetime, redis: Redis) -> None:
    assert keep_effects(redis, now=changed_at + LOOK + SETTLED - MINUTE) == 0
    assert keep_effects(redis, now=changed_at + LOOK + SETTLED + MINUTE) == 1


def test_what_still_waits_to_be_stored_is_a_part_of_it(changed_at: datetime.datetime, redis: Redis) -> None:
    entry = StretchEntry(
        pool=POOL, starts_at=int((changed_at + 6 * MINUTE).timestamp()), content=stretch(0.2, 0.2, 0.2)
    )
    pipe = redis.pipeline()
    chronicle.append(pipe, encode_entry(entry))
    pipe.execute()
    keep_effects(redis, now=NOW)
    assert ttfts(kept()[2]) == (1, 5)


def test_a_later_version_cuts_it_short_and_each_has_its_own(changed_at: datetime.datetime, redis: Redis) -> None:
    services.change(POOL, {"max_running": 9}, reason="", author="ann", redis=redis)
    date(3, changed_at + 4 * MINUTE)
    assert keep_effects(redis, now=NOW) == 2
    assert {number: ttfts(effect) for number, effect in kept().items()} == {2: (1, None), 3: (None, 2)}


def test_while_it_is_tried_on_one_engine_it_is_not_over(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    services.change(pool, {"max_running": 8}, reason="", author="ann", redis=redis, canary=True)
    far = NOW + datetime.timedelta(days=1)
    assert keep_effects(redis, now=far) == 0
    canaries.take_to_all(pool, 2, reason="", author="ann", redis=redis)
    assert keep_effects(redis, now=NOW + SETTLED) == 0
    assert keep_effects(redis, now=far) == 1


def test_what_one_engine_alone_ran_had_no_effect_on_the_pool(pool: str, redis: Redis) -> None:
    beat(redis, "engine-1", "engine-2")
    services.change(pool, {"max_running": 8}, reason="", author="ann", redis=redis, canary=True)
    canaries.take_back(pool, 2, reason="", author="ann", redis=redis)
    keep_effects(redis, now=NOW + datetime.timedelta(days=1))
    assert list(kept()) == [3]


def test_job_keeps_them_and_outlives_a_redis_that_is_away(
    changed_at: datetime.datetime,
    valkey: str,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app.autodiscover_tasks(force=True)
    monkeypatch.setattr(app, "outages", JobOutages())
    job = app.tasks["tuning.keep_effects"]
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    for _ in range(2):
        assert job.apply().failed()
    assert [line.partition(" (")[0] for line in caplog.messages] == ["Redis does not answer"]
    settings.REDIS_URL = valkey
    assert job.apply().successful()
    assert caplog.messages[1].startswith("Redis answers again")
    assert list(kept()) == [2]
