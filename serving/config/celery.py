"""The Celery application: jobs that never stand on the way of a token."""

from __future__ import annotations

import os

from celery import Celery

from serving.config.job_outages import Job, JobOutages

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")

app = Celery("footplate", task_cls=Job)
app.outages = JobOutages()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
