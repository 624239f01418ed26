"""The jobs process: a Celery worker with the beat on a thread of its own, so that one process is all there is."""

from __future__ import annotations

from celery.beat import EmbeddedService

from serving.config.celery import app


def run_jobs(*, with_beat: bool) -> int:
    """Work off jobs one at a time until SIGTERM or SIGINT; returns the exit status.

    Run the beat in one process only: two would send everything twice. As a thread it also ends with the process,
    whatever ends that.
    """
    beat = EmbeddedService(app, thread=True, schedule_filename=app.conf.beat_schedule_filename) if with_beat else None
    if beat is not None:
        beat.start()
    worker = app.Worker(pool_cls="solo", concurrency=1, quiet=True, loglevel="WARNING", without_mingle=True)
    worker.start()
    if beat is not None:
        beat.stop()
    return int(worker.exitcode or 0)
