"""`manage.py runweb`: one web process."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Serves API and console."""

    help = "Serve API and console over HTTP on HOST and PORT; SIGTERM drains."
    requires_system_checks = ()

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Serve; a problem at the start is one line and exit status 1."""
        from serving.config.web import WebCannotStart, run_web
        from serving.config.web_server import AddressInUse
        from serving.prepared import check_prepared

        check_prepared(needs_secret=True)
        try:
            run_web()
        except (AddressInUse, WebCannotStart) as problem:
            raise SystemExit(f"footplate: {problem}") from None
