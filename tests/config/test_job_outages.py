"""Jobs that reach nobody: a line as an outage begins and one as it ends, however often they are due meanwhile."""

from __future__ import annotations

import logging

import pytest
from celery import Celery
from django.conf import LazySettings
from django.db import IntegrityError, OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.config.celery import app
from serving.config.job_outages import Job, JobOutages
from tests.telemetry.conftest import Clock


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "serving.config.job_outages"]


def test_an_outage_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = JobOutages(clock=clock)
    for _ in range(5):
        outages.note_failure("drain", OperationalError("no route\nto host"))
        outages.note_failure("settle", OperationalError("no route"))
        outages.note_success("idle")  # one that had nothing to ask
        clock.now += 5
    outages.note_failure("settle", RedisConnectionError("refused"))
    outages.note_success("drain")
    outages.note_success("settle")
    outages.note_success("settle")
    assert said(caplog) == [
        "the database does not answer (no route): drain and others are done once it does",
        "Redis does not answer (refused): settle and others are done once it does",
        "the database answers again, after 25 s",
        "Redis answers again, after 0 s",
    ]
    outages.note_failure("drain", OperationalError())
    assert said(caplog)[4:] == [
        "the database does not answer (OperationalError): drain and others are done once it does"
    ]


def test_a_job_that_is_due_again_and_again_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception | None] = [OperationalError("gone"), OperationalError("gone"), None]
    jobs = Celery("toy", task_cls=Job, set_as_current=False)
    jobs.outages = JobOutages()

    @jobs.task(name="toy.work")  # type: ignore[untyped-decorator]
    def work() -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            work.apply()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert said(caplog)[1].startswith("the database answers again")


def test_a_fault_of_a_job_is_still_told_in_full(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Celery("toy", task_cls=Job, set_as_current=False)
    jobs.outages = JobOutages()

    @jobs.task(name="toy.fault")  # type: ignore[untyped-decorator]
    def fault() -> None:
        raise IntegrityError("twice")

    fault.apply()
    assert said(caplog) == []
    assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True]


def test_all_jobs_are_of_this_kind(
    settings: LazySettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "outages", JobOutages())
    app.autodiscover_tasks(force=True)
    settings.REDIS_URL = "redis://127.0.0.1:1"
    ours = [name for name in app.tasks if not name.startswith("celery.")]
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(ours)
    assert all(isinstance(app.tasks[name], Job) for name in ours)
    for name in ("telemetry.drain_chronicle", "telemetry.drain_requests", "telemetry.drain_chronicle"):
        app.tasks[name].apply()
    assert len(said(caplog)) == 1
    assert said(caplog)[0].startswith("Redis does not answer (")
