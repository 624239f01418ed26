"""An experiment in the foreground of a command: kept, played and put back as the Lab's process does it. Blocking."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from django.utils import timezone
from redis import Redis

from serving.audit.services import record
from serving.contracts.actors import Author, name_of
from serving.contracts.errors import Unavailable
from serving.lab.models import Experiment, State
from serving.lab.runs.services import LONGEST_TITLE
from serving.lab.runs.taking import free_pool
from serving.lab.runs.working import play_experiment
from serving.tuning.selectors import find_configured_pool

Ask = Callable[[], None]


def play_in_foreground(
    kind: str,
    *,
    pool: str,
    title: str,
    plan: Mapping[str, Any],
    author: Author,
    redis: Redis,
    say: Callable[[str], None] = lambda _title: None,
) -> Mapping[str, Any]:
    """Keep an experiment, play it here to its end, and return its result. SIGINT and SIGTERM end it: whatever it
    changed goes back first. `say` is told the title of each run as it begins.

    Raises `InvalidValue` while something else of the Lab works on the pool, `PoolNotFound` and `PoolNotConfigured`,
    `KeyboardInterrupt` where a signal ended it, and `Unavailable` where it ended in any other way than by itself.
    """
    experiment = _begin(kind, find_configured_pool(pool).name, title, plan, author)
    ending = threading.Event()
    with _ended_by_signals(ending.set):
        play_experiment(experiment, redis=redis, ending=ending, say=say)
    experiment.refresh_from_db()
    if ending.is_set() and experiment.result is None:
        raise KeyboardInterrupt(experiment.error)
    if experiment.state != State.FINISHED or experiment.result is None:
        raise Unavailable(f"{experiment} {experiment.state}: {experiment.error or 'an operator asked for it'}")
    result: Mapping[str, Any] = experiment.result
    return result


def _begin(kind: str, pool: str, title: str, plan: Mapping[str, Any], author: Author) -> Experiment:
    now = timezone.now()
    with free_pool(pool):
        experiment = Experiment.objects.create(
            kind=kind,
            pool=pool,
            title=title[:LONGEST_TITLE],
            plan=dict(plan),
            state=State.RUNNING,
            author=name_of(author),
            started_at=now,
            beaten_at=now,
        )
        record(
            "experiment ordered",
            actor=author,
            subject_kind="experiment",
            subject=str(experiment),
            pool=pool,
            reason=experiment.title,
        )
    return experiment


@contextlib.contextmanager
def _ended_by_signals(end: Ask) -> Iterator[None]:
    def hear(_signal: int, _frame: FrameType | None) -> None:
        end()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
