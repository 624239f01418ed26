"""The console as a Django application."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """Registers the console's tasks and templates."""

    name = "dashboard"
