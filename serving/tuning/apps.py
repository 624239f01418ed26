"""The Django application of pools and their tunables."""

from django.apps import AppConfig


class TuningConfig(AppConfig):
    """Pools and the versions of their tunables."""

    name = "serving.tuning"
    label = "tuning"
    verbose_name = "Tuning"
