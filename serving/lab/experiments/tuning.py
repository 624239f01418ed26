"""Changing a pool's tunables for an experiment, and putting them back however it ends. Blocking.

What the pool goes back to is kept with the experiment before its first change is stored: whoever finds an experiment
whose player is gone can put back what that one could not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db import transaction
from redis import Redis

from serving.contracts.actors import Actor
from serving.contracts.errors import (
    CanaryRuns,
    DomainError,
    InvalidValue,
    NothingChanges,
    PoolNotFound,
    StaleVersion,
    Unavailable,
)
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.lab.models import Experiment
from serving.tuning import selectors, services
from serving.tuning.living import living_engines
from serving.tuning.models import GuardrailState, TunablesVersion

PATIENCE_SECONDS: Final = 60.0
"""How long engines may take to run a version: they do so between two steps, or with their next heartbeat."""

_LOOK_SECONDS: Final = 0.25


class Overtaken(DomainError):
    """Somebody else changed the pool while an experiment did: what they stored stays."""

    code = "stale_version"


class Retuning:
    """Owns which engines an experiment began with; on the thread that plays it. The versions that it stores are named
    by their author, `<who ordered it>, <kind> <number>`, so that anybody can tell them from those of others."""

    def __init__(
        self,
        experiment_id: int,
        redis: Redis,
        *,
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._experiment_id = experiment_id
        self._redis = redis
        self._pause = pause
        self._now = now
        self._patience_seconds = patience_seconds
        self._engines: frozenset[EngineId] | None = None

    def retune(self, changes: Mapping[str, Any], *, reason: str) -> int:
        """Store a version with these changes and wait until every engine runs it; its number. Where the values are in
        force already, that is the version in force.

        Raises `Overtaken` where somebody else changed the pool since, or tries or watches a version of it;
        `Unavailable` where no engine lives, one is gone since the first change, or one does not take the version up in
        time; and what `serving.tuning.services.change` does.
        """
        experiment = Experiment.objects.get(pk=self._experiment_id)
        base = self._base_of(experiment)
        try:
            number = services.change(
                experiment.pool,
                changes,
                reason=reason,
                author=author_of(experiment),
                redis=self._redis,
                based_on=base,
            ).number
        except NothingChanges:
            number = base
        except (StaleVersion, CanaryRuns) as error:
            raise Overtaken(error.message) from None
        self._wait_until_run(experiment.pool, number)
        return int(number)

    def overtaken(self) -> str | None:
        """Who else changed the pool since the experiment's first change, in words; None while nobody did."""
        experiment = Experiment.objects.get(pk=self._experiment_id)
        if experiment.retuned is None:
            return None
        newest = selectors.newest_stored(selectors.find_pool(experiment.pool))
        return _by_others(experiment, newest)

    def _base_of(self, experiment: Experiment) -> int:
        """The version that the next change is made on. The first time, what is to come back is kept."""
        pool = selectors.find_configured_pool(experiment.pool)
        newest = selectors.newest_stored(pool)
        if experiment.retuned is None:
            _check_nobody_tries(experiment.pool, newest)
            kept = {"version": newest.number}
            if not Experiment.objects.filter(pk=experiment.pk, ended_at=None).update(retuned=kept):
                raise Overtaken(f"{experiment} was ended by others")
        elif (said := _by_others(experiment, newest)) is not None:
            raise Overtaken(said)
        return int(newest.number)

    def _wait_until_run(self, pool: str, number: int) -> None:
        until = self._now() + self._patience_seconds
        while True:
            engines = living_engines(self._redis, PoolName(pool))
            late = [engine.name for engine in engines if engine.tunables_version < number]
            if engines and not late:
                self._check_engines(pool, engines)
                return
            if self._now() >= until:
                break
            self._pause(_LOOK_SECONDS)
        if not engines:
            raise Unavailable(f"no engine of pool {pool} lives, so that none runs version {number}")
        seconds = f"{self._patience_seconds:g}"
        raise Unavailable(f"version {number} is not run within {seconds} s by {', '.join(late)}")

    def _check_engines(self, pool: str, engines: list[EngineSnapshot]) -> None:
        """Figures of other engines, or of more or fewer, could not be compared with those before."""
        ids = frozenset(engine.engine_id for engine in engines)
        if self._engines is not None and ids != self._engines:
            raise Unavailable(
                f"pool {pool} has other engines than when the experiment began: {len(self._engines - ids)} gone, "
                f"{len(ids - self._engines)} new"
            )
        self._engines = ids


def author_of(experiment: Experiment) -> Actor:
    """Who stores an experiment's versions: no user can have such a name."""
    kind = experiment.kind.replace("_", " ")
    return Actor(f"{experiment.author}, {kind} {experiment.pk}", "system")


def experiment_behind(pool: str, author: str) -> Experiment | None:
    """The experiment on this pool in whose name a version was stored, by the version's author; None where it was
    somebody else."""
    number = author.rpartition(" ")[2]
    found = Experiment.objects.filter(pk=number, pool=pool).first() if number.isdecimal() else None
    return found if found is not None and author_of(found).name == author else None


def restore(experiment: Experiment, *, redis: Redis) -> str:
    """Put the pool's tunables back to what they were before the experiment's first change; what was done, in words,
    empty where there was nothing to put back. Safe to repeat, and for whoever settles what a dead player left.

    What somebody else stored since stays.
    """
    with transaction.atomic():
        row = Experiment.objects.select_for_update().get(pk=experiment.pk)
        if row.retuned is None:
            return ""
        said = _put_back(row, redis)
        Experiment.objects.filter(pk=row.pk).update(retuned=None)
    return said


def _put_back(experiment: Experiment, redis: Redis) -> str:
    number = _kept_version(experiment)
    try:
        newest = selectors.newest_stored(selectors.find_pool(experiment.pool))
        if newest.number == number:
            return ""
        if (said := _by_others(experiment, newest)) is not None:
            return f"{said}: that stays"
        author = author_of(experiment)
        version = services.roll_back(
            experiment.pool,
            number,
            reason=f"{experiment.kind.replace('_', ' ')} {experiment.pk} ended: back to version {number}",
            author=author,
            redis=redis,
            based_on=newest.number,
        )
    except NothingChanges:
        return f"the tunables are those of version {number} already"
    except (StaleVersion, CanaryRuns, PoolNotFound, InvalidValue) as error:
        return f"the tunables of version {number} were not put back: {error.message}"
    return f"the tunables of version {number} are back, as version {version.number}"


def _kept_version(experiment: Experiment) -> int:
    assert experiment.retuned is not None, "something was kept before it is asked for"
    return int(experiment.retuned["version"])


def _by_others(experiment: Experiment, newest: TunablesVersion) -> str | None:
    if newest.number == _kept_version(experiment) or newest.author == author_of(experiment).name:
        return None
    return f"{newest.author} stored version {newest.number} meanwhile"


def _check_nobody_tries(pool: str, newest: TunablesVersion) -> None:
    if selectors.running_canary(newest.pool) is not None:
        raise Overtaken(f"version {newest.number} of pool {pool} is being tried on one engine: end that first")
    guardrail = selectors.newest_guardrail(newest.pool)
    if guardrail is not None and guardrail.state == GuardrailState.WATCHING:
        raise Overtaken(
            f"version {guardrail.version.number} of pool {pool} is watched by a guardrail: wait until that ends, or "
            "call it off"
        )
