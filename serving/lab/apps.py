"""The Django application of the Lab."""

from django.apps import AppConfig


class LabConfig(AppConfig):
    """Workloads, runs, experiments, and what was predicted."""

    name = "serving.lab"
    label = "lab"
    verbose_name = "Lab"
