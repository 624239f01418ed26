"""Reading runs. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection
from typing import Any, Final

import msgspec
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from serving.lab.models import Run, State
from serving.lab.packing import unpack_outcomes
from serving.lab.summaries import Outcome, RunSummary

PAGE_SIZE = 50
STATES: Final = tuple(str(state) for state in State.values)


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
    has_outcomes: bool

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state not in (State.WAITING, State.RUNNING)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are wanted: of a workload by its name, on a pool, in a state; None lets all through. Those against a
    foreign server have the pool ``."""

    workload: str | None = None
    pool: str | None = None
    state: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """Of which workloads and on which pools there are runs, each in order, and whether there are some against other
    servers."""

    workloads: tuple[str, ...]
    pools: tuple[str, ...]
    has_elsewhere: bool


def list_runs(wanted: RunFilter = RunFilter(), *, before: int | None = None, limit: int = PAGE_SIZE) -> list[RunView]:
    """The newest of the runs that are wanted, newest first, at most `limit`; only those older than number `before`
    where it is given."""
    names = {"workload": "workload__name", "pool": "pool", "state": "state"}
    bounds = {names[name]: value for name, value in dataclasses.asdict(wanted).items() if value is not None}
    rows = _rows().filter(**bounds).order_by("-pk")
    return [_view(row) for row in (rows if before is None else rows.filter(pk__lt=before))[:limit]]


def run_choices() -> RunChoices:
    """What a list of runs can be narrowed to."""
    pools = _distinct("pool")
    return RunChoices(
        workloads=tuple(sorted(_distinct("workload__name") - {""})),
        pools=tuple(sorted(pools - {""})),
        has_elsewhere="" in pools,
    )


def runs_of(run_ids: Collection[int]) -> list[RunView]:
    """Those of the runs of these numbers that there are, the oldest first."""
    return [_view(row) for row in _rows().filter(pk__in=run_ids).order_by("pk")]


def find_run(run_id: int) -> RunView | None:
    """The run of that number; None where there is none."""
    row = _rows().filter(pk=run_id).first()
    return None if row is None else _view(row)


def outcomes_of(run_id: int) -> list[Outcome]:
    """The requests of a run; none where none were kept."""
    packed = Run.objects.filter(pk=run_id).values_list("outcomes", flat=True).first()
    return [] if packed is None else unpack_outcomes(bytes(packed))


def packed_outcomes_of(run_ids: Collection[int]) -> dict[int, bytes]:
    """The requests of these runs as they are kept (see `serving.lab.packing`), by number; none where none were."""
    rows = Run.objects.filter(pk__in=run_ids).exclude(outcomes=None).values_list("pk", "outcomes")
    return {pk: bytes(packed) for pk, packed in rows if packed is not None}


def _rows() -> QuerySet[Run]:
    return (
        Run.objects.select_related("experiment")
        .defer("outcomes")
        .annotate(has_outcomes=ExpressionWrapper(Q(outcomes__isnull=False), output_field=BooleanField()))
    )


def _distinct(name: str) -> set[str]:
    return {str(value or "") for value in Run.objects.order_by().values_list(name, flat=True).distinct()}


def _view(row: Any) -> RunView:
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
        has_outcomes=row.has_outcomes,
    )
