"""What if? Computing predictions that were ordered, and forgetting old ones. Blocking.

The simulator is loaded where one is computed, and nowhere else.
"""

from __future__ import annotations

import datetime
import importlib
import logging
import threading
from typing import Any, Final, cast

import msgspec
from django.utils import timezone

from serving.contracts.errors import DomainError
from serving.lab.models import Prediction, State
from serving.lab.predictions.results import Basis, Predicted
from serving.lab.predictions.services import MOST_WAITING, OPEN, wake
from serving.lab.runs.tenant_quotas import quotas_of_tenants
from serving.lab.workloads.codec import decode_workload
from serving.tuning.selectors import tunables_of

logger = logging.getLogger(__name__)

LONGEST_SECONDS: Final = 120.0
"""What is not simulated by then is given up."""
_GRACE: Final = datetime.timedelta(seconds=LONGEST_SECONDS + 60)
_UNHEARD: Final = datetime.timedelta(seconds=20)
_SIMULATING: Final = "serving.lab.predictions.simulating"


def predict(prediction_id: int, *, ending: threading.Event) -> None:
    """Compute a prediction that waits, in a process of its own; one that somebody else took is left to them."""
    waiting = Prediction.objects.filter(pk=prediction_id, state=State.WAITING)
    if not waiting.update(state=State.RUNNING, started_at=timezone.now()):
        return
    row = Prediction.objects.get(pk=prediction_id)
    state, error, predicted = State.FINISHED, "", None
    try:
        workload = decode_workload(row.workload)
        predicted = _simulate(
            workload,
            current=tunables_of(row.current),
            proposed=tunables_of(row.proposed),
            basis=msgspec.convert(row.cost, type=Basis),
            quotas=quotas_of_tenants(workload),
            is_ending=ending.is_set,
            longest_seconds=LONGEST_SECONDS,
        )
    except DomainError as problem:
        state, error = State.FAILED, problem.message
    except Exception as problem:
        logger.exception("prediction %d failed", prediction_id)
        state, error = State.FAILED, f"{type(problem).__name__}: {problem}"
    Prediction.objects.filter(pk=prediction_id, state=State.RUNNING).update(
        state=state,
        error=error[:500],
        predicted=None if predicted is None else msgspec.to_builtins(predicted),
        ended_at=timezone.now(),
    )


def settle(*, now: datetime.datetime) -> None:
    """End what is said to be computed and whose process is gone, and tell again of what nobody took. Idempotent."""
    Prediction.objects.filter(state=State.RUNNING, started_at__lt=now - _GRACE).update(
        state=State.FAILED, error="the process that computed it is gone", ended_at=now
    )
    unheard = Prediction.objects.filter(state=State.WAITING, created_at__lt=now - _UNHEARD).order_by("pk")
    for prediction_id in unheard.values_list("pk", flat=True)[:MOST_WAITING]:
        wake(prediction_id)


def prune(*, kept: datetime.timedelta) -> None:
    """Forget predictions that were made longer ago than they are kept."""
    Prediction.objects.filter(created_at__lt=timezone.now() - kept).exclude(state__in=OPEN).delete()


def _simulate(*args: Any, **options: Any) -> Predicted:
    return cast(Predicted, importlib.import_module(_SIMULATING).simulate_elsewhere(*args, **options))
