"""The Django application of telemetry."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """Telemetry: measured by gateways, merged by the monitor, read through its selectors."""

    name = "serving.telemetry"
    label = "telemetry"
