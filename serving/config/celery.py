"""The Celery application: jobs that never stand on the way of a token."""

from __future__ import annotations

import os
import threading

from celery import Celery

from serving.config.job_outages import Job, JobOutages

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")

app = Celery("footplate", task_cls=Job)
app.outages = JobOutages()
app.ending = threading.Event()  # set as the process is to end: what takes long looks at it
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
