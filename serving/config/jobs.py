"""The jobs process: a Celery worker with the beat on a thread of its own, so that one process is all there is."""

from __future__ import annotations

from celery.beat import EmbeddedService
from celery.worker import state

from serving.config.celery import app
from serving.config.presence import presence


def run_jobs(*, with_beat: bool) -> int:
    """Work off jobs one at a time until SIGTERM or SIGINT; returns the exit status.

    Run the beat in one process only: two would send everything twice. As a thread it also ends with the process,
    whatever ends that.
    """
    beat = EmbeddedService(app, thread=True, schedule_filename=app.conf.beat_schedule_filename) if with_beat else None
    if beat is not None:
        beat.start()
    worker = app.Worker(pool_cls="solo", concurrency=1, quiet=True, loglevel="WARNING", without_mingle=True)
    with presence("jobs", doing=_tasks_at_work):
        worker.start()
    if beat is not None:
        beat.stop()
    return int(worker.exitcode or 0)


def _tasks_at_work() -> str:
    """The names of the tasks that run now. From any thread."""
    try:
        names = [str(request.name) for request in list(state.active_requests)]
    except RuntimeError:  # One began or ended just now.
        return ""
    return ", ".join(sorted(names)) or "waiting for work"
