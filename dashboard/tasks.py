"""Periodic work of the console."""

from celery import shared_task
from django.core.management import call_command


@shared_task(name="dashboard.clear_expired_sessions")  # type: ignore[untyped-decorator]
def clear_expired_sessions() -> None:
    """Delete sessions that have ended; running it twice is harmless."""
    call_command("clearsessions")
