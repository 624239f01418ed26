"""`manage.py runjobs`: the process that works off jobs."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    """Runs the Celery worker, with the beat unless told otherwise."""

    help = "Run jobs and, in this process alone, the clock that sends the periodic ones."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Whether to run the beat."""
        parser.add_argument(
            "--beat",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="send periodic jobs (one process of a deployment does)",
        )

        parser.add_argument(
            "--queue",
            choices=("jobs", "lab"),
            default="jobs",
            help="lab: what the Lab plays, which may take hours, in a process of its own, without the beat",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Work until told to stop."""
        from serving.config.jobs import run_jobs
        from serving.prepared import check_prepared

        check_prepared(needs_secret=True)
        if status := run_jobs(with_beat=options["beat"] and options["queue"] == "jobs", queue=options["queue"]):
            raise SystemExit(status)
