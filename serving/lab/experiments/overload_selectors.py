"""Reading overload tests. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from django.utils import timezone

from serving.lab.experiments.capacity import Capacity, Probe
from serving.lab.experiments.kept import common_fields
from serving.lab.experiments.overload_plan import POLICY, OverloadPlan, Way
from serving.lab.experiments.overload_results import OverloadResult
from serving.lab.fingerprints import Fingerprint, decode_fingerprint, differences
from serving.lab.models import Experiment, Run, State
from serving.lab.workloads.workload import Workload

KIND: Final = "overload"
MOST_LISTED: Final = 100
_RECENT: Final = datetime.timedelta(hours=24)
_LOOKED_AT: Final = 50


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """An overload test as it stands. `doing` is what it plays now, `probes` what was found of the capacity so far,
    `run_id` the run of the overload itself (None: none yet, or it was simulated); `result` is None until it ended by
    itself."""

    id: int
    pool: str
    title: str
    plan: OverloadPlan
    state: str
    author: str
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    error: str
    is_stop_asked: bool
    fingerprint: dict[str, Any]
    result: OverloadResult | None
    run_id: int | None = None
    doing: str = ""
    probes: tuple[Probe, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state not in (State.WAITING, State.RUNNING)


def list_overloads(*, limit: int = MOST_LISTED) -> list[Overload]:
    """The newest overload tests of all pools, newest first."""
    return [_read(row, run_id=None) for row in Experiment.objects.filter(kind=KIND)[:limit]]


def find_overload(overload_id: int) -> Overload | None:
    """The overload test of that number; None where there is none."""
    row = Experiment.objects.filter(kind=KIND, pk=overload_id).first()
    if row is None:
        return None
    runs = Run.objects.filter(experiment=row, point__stage="overload").values_list("pk", flat=True)
    return _read(row, run_id=runs.order_by("-pk").first())


def known_capacity(
    pool: str, workload: Workload, *, way: Way, tunables: Mapping[str, Any], fingerprint: Fingerprint
) -> Capacity | None:
    """The pool's capacity for these classes of requests as an overload test of the last day measured it, if the pool's
    engines and what its policy consists of are still the same; None where none did."""
    since = timezone.now() - _RECENT
    rows = Experiment.objects.filter(kind=KIND, pool=pool, state=State.FINISHED, ended_at__gte=since)
    for row in rows[:_LOOKED_AT]:
        test = _read(row, run_id=None)
        if test.result is None or test.plan.way != way or test.plan.workload.classes != workload.classes:
            continue
        if any(test.result.bounds.get(name) != tunables[name] for name in POLICY):
            continue
        old = decode_fingerprint(row.fingerprint)
        if way == "played" and (not old.num_engines or not fingerprint.num_engines or differences(old, fingerprint)):
            continue
        told = test.result.capacity
        return msgspec.structs.replace(told, measured_by=told.measured_by or f"overload test {row.pk}")
    return None


def _read(row: Experiment, *, run_id: int | None) -> Overload:
    progress: Mapping[str, Any] = row.progress
    result = None if row.result is None else msgspec.convert(row.result, type=OverloadResult)
    return Overload(
        **common_fields(row),
        plan=msgspec.convert(row.plan, type=OverloadPlan),
        result=result,
        run_id=run_id,
        doing=progress.get("doing", ""),
        probes=msgspec.convert(progress.get("probes", ()), type=tuple[Probe, ...]),
    )
