"""The Django application of tenants and keys."""

from django.apps import AppConfig


class AdmissionConfig(AppConfig):
    """Tenants and API keys."""

    name = "serving.admission"
    label = "admission"
    verbose_name = "Admission"
