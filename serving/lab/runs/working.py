"""What the Lab's process does: it takes what waits, one on a pool at a time, plays it, and settles what others left."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from redis import Redis

from serving.contracts.errors import DomainError
from serving.lab.experiments.bench import Stopped
from serving.lab.experiments.kinds import player_of
from serving.lab.experiments.tuning import restore
from serving.lab.models import Experiment, Run, State
from serving.lab.runs.own_keys import end_keys
from serving.lab.runs.playing import WAS_STOPPED, RunPlayer
from serving.lab.runs.real_bench import RealBench

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 60.0
"""Who plays gives a sign of life every second; one that is silent for longer is gone."""

_BOTH = (Run, Experiment)


def work_off(*, redis: Redis, ending: threading.Event) -> None:
    """Play what waits, the oldest first, until nothing does that could be played now."""
    while not ending.is_set() and (row := take_next()) is not None:
        if isinstance(row, Run):
            RunPlayer(row, redis=redis, ending=ending).play()
        else:
            play_experiment(row, redis=redis, ending=ending)


def take_next() -> Run | Experiment | None:
    """Take the oldest that waits and whose pool nothing else plays on; None where there is none. Whoever takes one has
    it alone."""
    busy = {
        pool for model in _BOTH for pool in model.objects.filter(state=State.RUNNING).values_list("pool", flat=True)
    }
    waiting: list[Run | Experiment] = [
        *Run.objects.filter(state=State.WAITING, experiment=None),
        *Experiment.objects.filter(state=State.WAITING),
    ]
    for row in sorted(waiting, key=lambda row: (row.created_at, row.pk)):
        # Runs against other servers are in nobody's way.
        if row.pool and row.pool in busy:
            continue
        if _take(row):
            return row
    return None


def play_experiment(experiment: Experiment, *, redis: Redis, ending: threading.Event) -> None:
    """Play an experiment that was taken to its end, and put back what it changed."""
    bench = RealBench(experiment, redis=redis, ending=ending)
    state, error, result = State.FINISHED, "", None
    try:
        result = player_of(experiment.kind)(experiment.plan, bench)
    except Stopped:
        state, error = (State.FAILED, WAS_STOPPED) if ending.is_set() else (State.STOPPED, "")
    except DomainError as problem:
        state, error = State.FAILED, problem.message
    except Exception as problem:
        logger.exception("experiment %d failed", experiment.pk)
        state, error = State.FAILED, f"{type(problem).__name__}: {problem}"
    _end_experiment(experiment, state, error, result, redis=redis)


def settle_orphans(*, redis: Redis) -> None:
    """End what is said to play and whose player is gone: keys are ended, tunables put back. Idempotent."""
    silent_since = timezone.now() - datetime.timedelta(seconds=SILENT_SECONDS)
    for experiment in Experiment.objects.filter(state=State.RUNNING, beaten_at__lt=silent_since):
        _end_experiment(experiment, State.FAILED, "its player is gone", None, redis=redis)
    # Redis may have been away as they ended.
    for experiment in Experiment.objects.exclude(state=State.RUNNING).exclude(retuned=None):
        restore(experiment, redis=redis)
    for run in Run.objects.filter(state=State.RUNNING, beaten_at__lt=silent_since):
        ended = Run.objects.filter(pk=run.pk, state=State.RUNNING, beaten_at__lt=silent_since).update(
            state=State.FAILED, error="its player is gone", ended_at=timezone.now()
        )
        if ended and run.pool:
            end_keys(run.pk, redis=redis)


def prune(*, kept: datetime.timedelta) -> None:
    """Forget runs and experiments that ended longer ago than they are kept."""
    before = timezone.now() - kept
    Experiment.objects.filter(ended_at__lt=before).delete()
    Run.objects.filter(ended_at__lt=before, experiment=None).delete()


def _take(row: Run | Experiment) -> bool:
    now = timezone.now()
    model = type(row)
    with transaction.atomic():
        waits = model.objects.filter(pk=row.pk, state=State.WAITING)
        if not waits.update(state=State.RUNNING, started_at=now, beaten_at=now):
            return False
        if row.pool and _num_playing(row.pool) > 1:
            model.objects.filter(pk=row.pk).update(state=State.WAITING, started_at=None, beaten_at=None)
            return False
    row.refresh_from_db()
    return True


def _num_playing(pool: str) -> int:
    own = Run.objects.filter(pool=pool, state=State.RUNNING, experiment=None).count()
    return own + Experiment.objects.filter(pool=pool, state=State.RUNNING).count()


def _end_experiment(
    experiment: Experiment, state: str, error: str, result: Mapping[str, Any] | None, *, redis: Redis
) -> None:
    try:
        restored = restore(experiment, redis=redis)
    except Exception as problem:  # It is tried again by whoever settles what is left.
        logger.exception("the tunables of %s could not be put back", experiment.pool)
        restored = f"the tunables were not put back: {problem}"
    for run in experiment.runs.filter(state__in=(State.WAITING, State.RUNNING)):
        Run.objects.filter(pk=run.pk).update(state=State.FAILED, error=WAS_STOPPED, ended_at=timezone.now())
        end_keys(run.pk, redis=redis)
    told = "; ".join(part for part in (error, restored if error else "") if part)
    Experiment.objects.filter(pk=experiment.pk, state=State.RUNNING).update(
        state=state, error=told[:500], result=result, ended_at=timezone.now()
    )


def new_redis() -> Redis:
    """A blocking client that does not wait for long."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
