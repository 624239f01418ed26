"""Who may play on a pool while several processes ask at once. Over PostgreSQL as well (tests/config)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from redis import Redis

from serving.contracts.errors import InvalidValue
from serving.lab.models import Experiment, Run, State
from serving.lab.playing.target import Target
from serving.lab.runs import services
from serving.lab.runs.taking import free_pool, take_next
from tests.lab.runs.scripted import POOL, WORKLOAD

pytestmark = pytest.mark.waits


class Other:
    """Another process, as far as the database is concerned: what it does, it does over a connection of its own."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.result: Any = "nothing yet"
        self._act = act
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Let it run as far as it comes within half a second."""
        self._thread.start()
        self._thread.join(0.5)

    def end(self) -> Any:
        """What it came to."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.result

    def _run(self) -> None:
        try:
            self.result = self._act()
        except Exception as error:
            self.result = error
        finally:
            connection.close()


def test_two_that_ask_at_once_do_not_take_two_runs_of_one_pool(pool: str, redis: Redis) -> None:
    first, second = services.order_run(WORKLOAD, pool=pool, author="ann", repeats=2)
    other = Other(take_next)
    with transaction.atomic():
        taken = take_next()
        other.begin()
    assert taken is not None
    assert taken.pk == first.pk
    assert other.end() is None
    assert list(Run.objects.filter(state=State.RUNNING)) == [first]
    assert Run.objects.get(pk=second.pk).started_at is None


def test_a_run_and_an_experiment_are_not_taken_at_once_on_one_pool(pool: str, redis: Redis) -> None:
    services.order_run(WORKLOAD, pool=pool, author="ann")
    experiment = services.order_experiment("sweep", pool=pool, title="", plan={}, author="ann")
    other = Other(take_next)
    with transaction.atomic():
        assert isinstance(take_next(), Run)
        other.begin()
    assert other.end() is None
    experiment.refresh_from_db()
    assert experiment.state == State.WAITING


def test_nothing_is_taken_while_a_command_begins_on_the_pool(pool: str, redis: Redis) -> None:
    services.order_run(WORKLOAD, pool=pool, author="ann")
    other = Other(take_next)
    with free_pool(pool):
        other.begin()
        Experiment.objects.create(kind="sweep", pool=POOL, title="", plan={}, author="ann", state=State.RUNNING)
    assert other.end() is None
    assert not Run.objects.filter(state=State.RUNNING).exists()


def test_a_command_does_not_begin_on_a_pool_on_which_a_run_is_being_taken(pool: str, redis: Redis) -> None:
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")

    def begin() -> None:
        with free_pool(pool):
            raise AssertionError("it may not begin")

    other = Other(begin)
    with transaction.atomic():
        assert take_next() is not None
        other.begin()
    refusal = other.end()
    assert isinstance(refusal, InvalidValue)
    assert f"run {run.pk} does" in refusal.message


def test_against_other_servers_one_plays_at_a_time(pool: str, redis: Redis, settings: Any) -> None:
    settings.FOOTPLATE_LOADTEST_HOSTS = frozenset({"127.0.0.1"})
    foreign = Target(url="http://127.0.0.1:9", model="m")
    first, second = services.order_run(WORKLOAD, author="ann", foreign=foreign, repeats=2)
    other = Other(take_next)
    with transaction.atomic():
        assert (taken := take_next()) is not None
        other.begin()
    assert taken.pk == first.pk
    assert other.end() is None
    Run.objects.filter(pk=first.pk).update(state=State.FINISHED)
    assert (taken := take_next()) is not None
    assert taken.pk == second.pk


def test_what_was_stopped_while_it_was_looked_at_is_not_taken(
    pool: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = services.order_run(WORKLOAD, pool=pool, author="ann")
    other = Other(take_next)
    with transaction.atomic():
        services.stop_run(run.pk, author="bob")
        other.begin()
    assert other.end() is None
    run.refresh_from_db()
    assert (run.state, run.started_at) == (State.STOPPED, None)
