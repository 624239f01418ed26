"""Reading predictions. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import datetime
from typing import Any, Final

import msgspec

from serving.lab.models import Prediction, State
from serving.lab.predictions.results import (
    Accuracy,
    Basis,
    MeasuredFigures,
    Predicted,
    accuracy_of,
    predicted_figures,
    relative_errors,
)
from serving.lab.workloads.workload import Workload
from serving.tuning.selectors import tunables_of

MOST_LISTED: Final = 100
_MOST_JUDGED: Final = 1000


class PredictionView(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction as it stands. `changes` is `{name: [current, proposed]}`; `predicted` is None until it was
    computed, `measured` until it is known what happened under `version`, and `errors` are the predicted figures' (see
    `relative_errors`), empty until then."""

    id: int
    pool: str
    workload: Workload
    changes: dict[str, list[Any]]
    basis: Basis
    state: str
    error: str
    predicted: Predicted | None
    version: int | None
    measured: MeasuredFigures | None
    measured_at: datetime.datetime | None
    errors: dict[str, float]
    author: str
    created_at: datetime.datetime
    fingerprint: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether it was computed, or will not be."""
        return self.state not in (State.WAITING, State.RUNNING)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How good predictions were: `num_made` of them, `num_applied` of which became a version, `num_measured` of which
    could be compared; the newest of these by figure."""

    num_made: int
    num_applied: int
    num_measured: int
    figures: tuple[Accuracy, ...]


def list_predictions(*, pool: str | None = None, limit: int = MOST_LISTED) -> list[PredictionView]:
    """The newest predictions, newest first: of all pools, or of one."""
    rows = Prediction.objects.all() if pool is None else Prediction.objects.filter(pool=pool)
    return [_read(row) for row in rows[:limit]]


def find_prediction(prediction_id: int) -> PredictionView | None:
    """The prediction of that number; None where there is none."""
    row = Prediction.objects.filter(pk=prediction_id).first()
    return None if row is None else _read(row)


def prediction_of(pool: str, version: int) -> int | None:
    """The number of the prediction that a version of a pool was stored after; None where there was none."""
    return Prediction.objects.filter(pool=pool, version=version).values_list("pk", flat=True).first()


def read_record() -> Record:
    """The Lab's own record, over all pools."""
    rows = Prediction.objects.filter(measured__isnull=False, predicted__isnull=False)[:_MOST_JUDGED]
    errors = [found for row in rows if (found := _errors(_predicted(row), _measured(row)))]
    return Record(
        num_made=Prediction.objects.filter(state=State.FINISHED).count(),
        num_applied=Prediction.objects.exclude(version=None).count(),
        num_measured=len(errors),
        figures=accuracy_of(errors),
    )


def _read(row: Prediction) -> PredictionView:
    predicted, measured = _predicted(row), _measured(row)
    return PredictionView(
        id=row.pk,
        pool=row.pool,
        workload=msgspec.convert(row.workload, type=Workload),
        changes=tunables_of(row.proposed).differences(tunables_of(row.current)),
        basis=msgspec.convert(row.cost, type=Basis),
        state=row.state,
        error=row.error,
        predicted=predicted,
        version=row.version,
        measured=measured,
        measured_at=row.measured_at,
        errors=_errors(predicted, measured),
        author=row.author,
        created_at=row.created_at,
        fingerprint=row.fingerprint,
    )


def _predicted(row: Prediction) -> Predicted | None:
    return None if row.predicted is None else msgspec.convert(row.predicted, type=Predicted)


def _measured(row: Prediction) -> MeasuredFigures | None:
    return None if row.measured is None else msgspec.convert(row.measured, type=MeasuredFigures)


def _errors(predicted: Predicted | None, measured: MeasuredFigures | None) -> dict[str, float]:
    if predicted is None or measured is None:
        return {}
    return relative_errors(predicted_figures(predicted.proposed), measured.figures)
