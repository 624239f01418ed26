"""Versions of tunables: stored first, then announced; never changed afterwards."""

from __future__ import annotations

import concurrent.futures
import io
import itertools
import math
from typing import Any, cast

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from redis import Redis

from serving.contracts import keys
from serving.contracts.errors import InvalidValue, NothingChanges, PoolNotFound, StaleVersion, UnknownField
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, Retune, decode_announced, decode_control
from serving.contracts.tunables import Tunables
from serving.tuning import selectors, services
from serving.tuning.announcing import announce
from serving.tuning.models import TunablesVersion

UNREACHABLE = Redis.from_url("unix:///nonexistent/valkey.sock")


def change(pool: str, redis: Redis, *, based_on: int | None = None, **changes: Any) -> TunablesVersion:
    return services.change(pool, changes, reason="a test", author="tests", redis=redis, based_on=based_on)


def announced(redis: Redis, pool: str) -> AnnouncedTunables | None:
    stored = cast("bytes | None", redis.get(keys.announced_tunables(PoolName(pool))))
    return None if stored is None else decode_announced(stored)


def test_pool_begins_with_the_defaults_and_is_made_once(pool: str) -> None:
    assert selectors.current_tunables(pool) == AnnouncedTunables(1, Tunables())
    services.ensure_pool(pool, "another-model")
    assert len(selectors.versions(pool)) == 1
    assert selectors.find_pool(pool).model == "another-model"
    assert selectors.pool_names() == [pool]


def test_change_is_stored_with_who_when_why_and_the_difference(pool: str, redis: Redis) -> None:
    version = change(pool, redis, max_running=8, mode="static", batch_window_ms=0)
    assert version.number == 2
    assert version.changes == {"mode": ["continuous", "static"], "max_running": [32, 8]}
    assert (version.reason, version.author) == ("a test", "tests")
    assert version.created_at is not None
    assert selectors.current_tunables(pool).tunables == Tunables(mode="static", max_running=8)
    assert [entry.number for entry in selectors.versions(pool)] == [2, 1]


def test_change_is_announced_whole_to_every_living_engine(pool: str, redis: Redis) -> None:
    living, dead = EngineId("living"), EngineId("dead")
    redis.zadd(keys.engines(PoolName(pool)), {living: 1, dead: 1})
    redis.set(keys.heartbeat(living), b"beats")
    change(pool, redis, max_running=8)
    wanted = Tunables(max_running=8)
    assert announced(redis, pool) == AnnouncedTunables(2, wanted)
    ((_, fields),) = cast("list[tuple[bytes, dict[bytes, bytes]]]", redis.xrange(keys.control(living)))
    assert decode_control(fields[keys.FIELD]) == Retune(2, wanted)
    assert not redis.exists(keys.control(dead))


def test_nothing_is_announced_before_the_database_has_it_for_good(pool: str, redis: Redis) -> None:
    with pytest.raises(RuntimeError, match="too late"), transaction.atomic():  # noqa: PT012
        change(pool, redis, max_running=8)
        assert announced(redis, pool) is None
        raise RuntimeError("too late")
    assert announced(redis, pool) is None
    assert selectors.current_tunables(pool).version == 1


def test_change_is_kept_while_redis_is_out_of_reach(pool: str) -> None:
    assert change(pool, UNREACHABLE, max_running=8).number == 2
    assert selectors.current_tunables(pool).tunables.max_running == 8


def test_late_announcement_does_not_bring_an_older_version_back(pool: str, redis: Redis) -> None:
    newer, older = AnnouncedTunables(7, Tunables(max_running=7)), AnnouncedTunables(6, Tunables(max_running=6))
    assert announce(redis, PoolName(pool), newer)
    assert announce(redis, PoolName(pool), older)
    assert announced(redis, pool) == newer


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"max_running": 0}, InvalidValue, ["max_running", "0", "1024"]),
        ({"max_running": True}, InvalidValue, ["max_running"]),
        ({"max_running": 2.5}, InvalidValue, ["max_running", "2.5"]),
        ({"max_running": 10**400}, InvalidValue, ["max_running", "1024"]),
        ({"prefill_share": -(10**400)}, InvalidValue, ["prefill_share", "from 0 to 1"]),
        ({"prefill_share": math.nan}, InvalidValue, ["prefill_share", "nan"]),
        ({"batch_window_ms": math.inf}, InvalidValue, ["batch_window_ms", "inf"]),
        ({"prefill_share": "much"}, InvalidValue, ["prefill_share", "much"]),
        ({"mode": "fast"}, InvalidValue, ["mode", "fast", "static"]),
        ({"max_runing": 1}, UnknownField, ["max_runing", "max_running"]),
        ({"max_running": 32}, NothingChanges, ["nothing would change", "version 1"]),
        ({}, NothingChanges, ["nothing would change"]),
    ],
)
def test_senseless_changes_are_refused_and_leave_no_version(
    pool: str, redis: Redis, changes: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        change(pool, redis, **changes)
    assert all(word in str(caught.value) for word in words)
    assert selectors.current_tunables(pool).version == 1
    assert announced(redis, pool) is None


def test_change_based_on_an_older_version_is_refused(pool: str, redis: Redis) -> None:
    change(pool, redis, max_running=8, based_on=1)
    with pytest.raises(StaleVersion, match="version 2"):
        change(pool, redis, max_running=9, based_on=1)
    change(pool, redis, max_running=9, based_on=2)


def test_roll_back_based_on_an_older_version_is_refused(pool: str, redis: Redis) -> None:
    change(pool, redis, max_running=8)
    with pytest.raises(StaleVersion, match="version 2"):
        services.roll_back(pool, 1, reason="", author="tests", redis=redis, based_on=1)
    assert services.roll_back(pool, 1, reason="", author="tests", redis=redis, based_on=2).number == 3


def test_versions_are_read_in_pages(pool: str, redis: Redis) -> None:
    for number in range(1, 6):
        change(pool, redis, max_running=number)
    assert [version.number for version in selectors.versions(pool, limit=2)] == [6, 5]
    assert [version.number for version in selectors.versions(pool, before=5, limit=2)] == [4, 3]
    assert [version.number for version in selectors.versions(pool, before=1)] == []
    assert [version.number for version in selectors.versions_after(pool, 4)] == [6, 5]
    assert [version.number for version in selectors.versions_after(pool, 3, limit=1)] == [6]
    assert selectors.versions_after(pool, 6) == []
    assert selectors.versions_after(pool, 10**30) == []


@pytest.mark.parametrize("reason", ["x" * 501, "a\0b"])
def test_reasons_that_cannot_be_stored_are_refused(pool: str, redis: Redis, reason: str) -> None:
    with pytest.raises(InvalidValue, match="reason"):
        services.change(pool, {"max_running": 8}, reason=reason, author="tests", redis=redis)
    with pytest.raises(InvalidValue, match="reason"):
        services.roll_back(pool, 1, reason=reason, author="tests", redis=redis)


def test_roll_back_is_a_new_version_equal_to_an_old_one(pool: str, redis: Redis) -> None:
    change(pool, redis, max_running=8, prefill_share=0.25)
    change(pool, redis, max_running=4)
    version = services.roll_back(pool, 2, reason="", author="tests", redis=redis)
    assert version.number == 4
    assert version.changes == {"max_running": [4, 8]}
    assert "2" in version.reason
    assert announced(redis, pool) == AnnouncedTunables(4, Tunables(max_running=8, prefill_share=0.25))
    for wrong, error in ((9, InvalidValue), (4, NothingChanges), (2, NothingChanges)):
        with pytest.raises(error, match="version"):
            services.roll_back(pool, wrong, reason="", author="tests", redis=redis)


def test_unknown_pool_is_named(pool: str, redis: Redis) -> None:
    with pytest.raises(PoolNotFound, match="nowhere"):
        change("nowhere", redis, max_running=1)
    with pytest.raises(PoolNotFound, match="nowhere"):
        selectors.current_tunables("nowhere")
    with pytest.raises(PoolNotFound, match="no"):
        change("no\0where", redis, max_running=1)


def test_stored_values_outlive_the_definition(pool: str) -> None:
    version = selectors.current_version(pool)
    stored = {**version.values, "a_tunable_that_is_gone": 1}
    del stored["kv_limit_ratio"]
    TunablesVersion.objects.filter(pk=version.pk).update(values={**stored, "max_running": 5})
    assert selectors.current_tunables(pool).tunables == Tunables(max_running=5)


def test_many_at_once_make_versions_one_after_another(pool: str, redis: Redis) -> None:
    def change_and_close(value: int) -> int:
        try:
            return change(pool, redis, batch_window_ms=value).number
        finally:
            connections.close_all()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(change_and_close, range(1, 41)))
    assert sorted(numbers) == list(range(2, 42))
    history = selectors.versions(pool)
    for newer, older in itertools.pairwise(history):
        assert newer.changes["batch_window_ms"][0] == older.values["batch_window_ms"]
    stored = announced(redis, pool)
    assert stored is not None
    assert stored == selectors.current_tunables(pool)


def test_command_shows_sets_and_lists(pool: str, redis: Redis, valkey: str, settings: Any) -> None:
    settings.REDIS_URL = valkey

    def run(*arguments: str) -> str:
        output = io.StringIO()
        call_command("tunables", *arguments, stdout=output)
        return output.getvalue()

    assert "version 2" in run("set", "max_running=8", "mode=static", "--reason", "quieter")
    shown = run("show")
    assert "version 2" in shown
    assert "static" in shown
    assert "max_running 32 → 8" in run("history")
    assert "quieter" in run("history")
    stored = announced(redis, pool)
    assert stored is not None
    assert stored.version == 2
    assert "mind: The window alone (20 ms)" in run("set", "batch_window_ms=20", "slo_ttft_ms=10")
    for wrong in (["max_running=many"], ["nothing"], ["max_running=0"], ["unknown=1"]):
        with pytest.raises(CommandError):
            run("set", *wrong)
