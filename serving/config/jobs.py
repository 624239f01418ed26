"""The jobs process: a Celery worker with the beat on a thread of its own, so that one process is all there is."""

from __future__ import annotations

from typing import Any, Literal

from celery.beat import EmbeddedService
from celery.signals import worker_shutting_down
from celery.worker import state
from django.conf import settings

from serving.config.celery import app
from serving.config.presence import presence

_BEAT_SECONDS = 0.5
"""How long the beat sleeps at most: a stop waits for its end."""


Queue = Literal["jobs", "lab"]
"""`jobs` are short, and done one at a time; what the Lab plays may take hours, some of it at once, and has a process of
its own."""


def lab_threads(num_pools: int) -> int:
    """How many threads the Lab's process needs, so that nothing waits for what plays elsewhere: one run or experiment a
    pool, one run against another server, and one that is left for what takes seconds, as predictions do."""
    return num_pools + 2


def _terms_of(queue: Queue) -> dict[str, Any]:
    if queue == "jobs":
        return {"pool_cls": "solo", "concurrency": 1}
    return {"pool_cls": "threads", "concurrency": lab_threads(len(settings.FOOTPLATE_POOLS)), "queues": ["lab"]}


def run_jobs(*, with_beat: bool, queue: Queue = "jobs") -> int:
    """Work off a queue until SIGTERM or SIGINT; returns the exit status.

    Run the beat in one process only: two would send everything twice. As a thread it also ends with the process,
    whatever ends that.
    """
    worker_shutting_down.connect(_tell_of_end)
    beat = _beat() if with_beat else None
    if beat is not None:
        settings.FOOTPLATE_HOME.mkdir(parents=True, exist_ok=True)  # the beat keeps its place there
        beat.start()
    # Without gossip, whose end Celery cannot survive while Redis is away.
    terms = _terms_of(queue)
    worker = app.Worker(**terms, quiet=True, loglevel="WARNING", without_mingle=True, without_gossip=True)
    with presence("jobs", name=queue, doing=_tasks_at_work):
        worker.start()
    if beat is not None:
        beat.stop()
    return int(worker.exitcode or 0)


def _tell_of_end(**_: Any) -> None:
    app.ending.set()


def _beat() -> EmbeddedService:
    beat = EmbeddedService(app, thread=True, schedule_filename=app.conf.beat_schedule_filename)
    beat.service.max_interval = _BEAT_SECONDS  # Celery has its own for a thread, whatever it is given
    return beat


def _tasks_at_work() -> str:
    """The names of the tasks that run now. From any thread."""
    try:
        names = [str(request.name) for request in list(state.active_requests)]
    except RuntimeError:  # One began or ended just now.
        return ""
    return ", ".join(sorted(names)) or "waiting for work"
