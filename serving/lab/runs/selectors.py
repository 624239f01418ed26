"""Reading runs. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import msgspec

from serving.lab.models import Run, State
from serving.lab.runs.playing import unpack_outcomes
from serving.lab.summaries import Outcome, RunSummary

PAGE_SIZE = 50


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as it stands. `summary` is None until something of it was measured; `progress` is what it last told while
    it played. `experiment` names what it was part of, as `sweep 12`."""

    id: int
    title: str
    workload: dict[str, Any]
    target: dict[str, Any]
    pool: str
    tunables: dict[str, Any] | None
    tunables_version: int | None
    experiment: str
    experiment_kind: str
    experiment_id: int | None
    point: dict[str, Any]
    state: str
    progress: dict[str, Any]
    summary: RunSummary | None
    fingerprint: dict[str, Any]
    error: str
    is_stop_asked: bool
    author: str
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state not in (State.WAITING, State.RUNNING)


def list_runs(*, before: int | None = None, limit: int = PAGE_SIZE) -> list[RunView]:
    """The newest runs, newest first, at most `limit`; only those older than number `before` where it is given."""
    rows = Run.objects.select_related("experiment").defer("outcomes").order_by("-pk")
    return [_view(row) for row in (rows if before is None else rows.filter(pk__lt=before))[:limit]]


def find_run(run_id: int) -> RunView | None:
    """The run of that number; None where there is none."""
    row = Run.objects.select_related("experiment").defer("outcomes").filter(pk=run_id).first()
    return None if row is None else _view(row)


def outcomes_of(run_id: int) -> list[Outcome]:
    """The requests of a run; none where none were kept."""
    packed = Run.objects.filter(pk=run_id).values_list("outcomes", flat=True).first()
    return [] if packed is None else unpack_outcomes(bytes(packed))


def _view(row: Run) -> RunView:
    experiment = row.experiment
    return RunView(
        id=row.pk,
        title=row.title,
        workload=row.workload,
        target=row.target,
        pool=row.pool,
        tunables=row.tunables,
        tunables_version=row.tunables_version,
        experiment="" if experiment is None else f"{experiment.kind.replace('_', ' ')} {experiment.pk}",
        experiment_kind="" if experiment is None else experiment.kind,
        experiment_id=None if experiment is None else experiment.pk,
        point=row.point,
        state=row.state,
        progress=row.progress,
        summary=None if row.summary is None else msgspec.convert(row.summary, type=RunSummary),
        fingerprint=row.fingerprint,
        error=row.error,
        is_stop_asked=row.stop_asked,
        author=row.author,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
