"""What the Lab's process does: it takes what waits, one on a pool at a time, plays it, and settles what others left."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.conf import settings
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
from serving.lab.runs.taking import take_next

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 60.0
"""Who plays gives a sign of life every second; one that is silent for longer is gone."""


def work_off(*, redis: Redis, ending: threading.Event) -> None:
    """Play what waits, the oldest first, until nothing does that could be played now."""
    while not ending.is_set() and (row := take_next()) is not None:
        if isinstance(row, Run):
            RunPlayer(row, redis=redis, ending=ending).play()
        else:
            play_experiment(row, redis=redis, ending=ending)


def play_experiment(
    experiment: Experiment,
    *,
    redis: Redis,
    ending: threading.Event,
    say: Callable[[str], None] = lambda _title: None,
) -> None:
    """Play an experiment that was taken to its end, and put back what it changed. `say` is told the title of each run
    as it begins."""
    state, error, result = State.FINISHED, "", None
    try:
        bench = RealBench(experiment, redis=redis, ending=ending, say=say)
        result = player_of(experiment.kind)(experiment.plan, bench)
    except Stopped:
        state, error = (State.FAILED, WAS_STOPPED) if _is_cut_off(experiment, ending) else (State.STOPPED, "")
    except DomainError as problem:
        state, error = State.FAILED, problem.message
    except Exception as problem:
        logger.exception("experiment %d failed", experiment.pk)
        state, error = State.FAILED, f"{type(problem).__name__}: {problem}"
    _end_experiment(experiment, state, error, result, redis=redis)


def _is_cut_off(experiment: Experiment, ending: threading.Event) -> bool:
    """Whether it stopped because its process ends. An operator who asked for a stop as well is who stopped it."""
    return ending.is_set() and not Experiment.objects.filter(pk=experiment.pk, stop_asked=True).exists()


def settle_orphans(*, redis: Redis) -> None:
    """End what is said to play and whose player is gone: keys are ended, tunables put back. Idempotent."""
    silent_since = timezone.now() - datetime.timedelta(seconds=SILENT_SECONDS)
    for experiment in Experiment.objects.filter(state=State.RUNNING, beaten_at__lt=silent_since):
        _end_experiment(experiment, State.FAILED, "its player is gone", None, redis=redis)
    # Redis may have been away as they ended.
    for experiment in Experiment.objects.exclude(state=State.RUNNING).filter(retuned__isnull=False):
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


def _end_experiment(
    experiment: Experiment, state: str, error: str, result: Mapping[str, Any] | None, *, redis: Redis
) -> None:
    is_back = True
    try:
        restored = restore(experiment, redis=redis)
    except Exception as problem:  # It is tried again by whoever settles what is left.
        logger.exception("the tunables of %s could not be put back", experiment.pool)
        is_back, restored = False, f"the tunables were not put back: {problem}"
    _end_runs(experiment, state, error, redis=redis)
    told = "; ".join(part for part in (error, restored if error or not is_back else "") if part)
    ended = Experiment.objects.filter(pk=experiment.pk, state=State.RUNNING).update(
        state=state, error=told[:500], result=result, ended_at=timezone.now()
    )
    if not ended:
        logger.warning("%s had been ended before it came to its end: %s %s", experiment, state, told)


def _end_runs(experiment: Experiment, state: str, error: str, *, redis: Redis) -> None:
    """A run that plays still, or never began, ends as its experiment does, for the same reason."""
    state = state if state == State.STOPPED else State.FAILED
    for run in experiment.runs.filter(state__in=(State.WAITING, State.RUNNING)):
        open_run = Run.objects.filter(pk=run.pk, state__in=(State.WAITING, State.RUNNING))
        open_run.update(state=state, error=(error or "its experiment ended")[:500], ended_at=timezone.now())
        end_keys(run.pk, redis=redis)


def new_redis() -> Redis:
    """A blocking client that does not wait for long."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
