"""The Celery application: jobs that never stand on the way of a token."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")

app = Celery("footplate")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
