"""`manage.py prepare`: what has to be there before the processes of a deployment start."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Makes tables, pools, static files and the default model; starts nothing."""

    help = "Migrate, make the pools, collect static files and import the default model where a pool serves it."
    requires_system_checks = ()

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Prepare; a problem is one line and exit status 1."""
        from serving.config.bootstrap import prepare
        from serving.config.home import StartProblem

        try:
            prepare(self.stdout.write)
        except StartProblem as problem:
            raise SystemExit(f"footplate: {problem}") from None
