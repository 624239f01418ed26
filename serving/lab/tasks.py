"""The Lab's jobs. Each may run twice, or at once.

Errors of Redis and of a database that is out of reach pass through: what was not done is done when it is due again.
"""

from __future__ import annotations

import datetime
from typing import Any

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from serving.lab.autopilot.services import advance_all
from serving.lab.costs.services import refresh_costs
from serving.lab.predictions import computing, following
from serving.lab.runs import working


@shared_task(name="lab.work_off", bind=True)  # type: ignore[untyped-decorator]
def work_off(task: Any) -> None:
    """Play what waits. In the Lab's own process, which may take hours for it."""
    with working.new_redis() as redis:
        working.work_off(redis=redis, ending=task.app.ending)


@shared_task(name="lab.settle_orphans")  # type: ignore[untyped-decorator]
def settle_orphans() -> None:
    """End what plays no longer, though nobody said so."""
    with working.new_redis() as redis:
        working.settle_orphans(redis=redis)


@shared_task(name="lab.fit_costs")  # type: ignore[untyped-decorator]
def fit_costs() -> None:
    """Fit what engines recorded of their steps, where nothing was fitted yet or something has changed."""
    with working.new_redis() as redis:
        refresh_costs(redis)


@shared_task(name="lab.prune_runs")  # type: ignore[untyped-decorator]
def prune_runs() -> None:
    """Delete runs, experiments and predictions that are older than they are kept."""
    kept = datetime.timedelta(days=settings.FOOTPLATE_RUNS_DAYS)
    working.prune(kept=kept)
    computing.prune(kept=kept)


@shared_task(name="lab.advance_autopilots")  # type: ignore[untyped-decorator]
def advance_autopilots() -> None:
    """Let autopilots look at their pools."""
    with working.new_redis() as redis:
        advance_all(redis)


@shared_task(name="lab.predict", bind=True)  # type: ignore[untyped-decorator]
def predict(task: Any, prediction_id: int) -> None:
    """Compute a prediction. In the Lab's own process."""
    computing.predict(prediction_id, ending=task.app.ending)


@shared_task(name="lab.follow_predictions")  # type: ignore[untyped-decorator]
def follow_predictions() -> None:
    """See what became of predictions: which were applied, and what was measured then."""
    now = timezone.now()
    computing.settle(now=now)
    following.link_versions(now=now)
    following.measure_predictions(now=now)
