"""`manage.py serve`: everything on one machine."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    """Starts, watches and stops all processes."""

    help = "Run Valkey, web, engine, monitor and jobs on this machine until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """What else may end it."""
        parser.add_argument(
            "--stop-with-parent",
            action="store_true",
            help="drain and stop when the process that started this one ends, whatever ended it",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Serve; a problem at the start is one line and exit status 1."""
        from serving.config.home import StartProblem
        from serving.config.processes import stop_with_parent
        from serving.config.stack import serve

        if options["stop_with_parent"]:
            stop_with_parent()
        try:
            serve()
        except StartProblem as problem:
            raise SystemExit(f"footplate: {problem}") from None
        except KeyboardInterrupt:
            raise SystemExit("footplate: interrupted") from None
