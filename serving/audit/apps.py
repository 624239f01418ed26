"""The Django application of the audit."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    """Who did what, when and why."""

    name = "serving.audit"
    label = "audit"
    verbose_name = "Audit"
