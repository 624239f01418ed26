"""Reading sweeps. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from serving.lab.experiments.kept import common_fields
from serving.lab.experiments.sweep_plan import SweepPlan
from serving.lab.experiments.sweep_results import Leg, SweepResult
from serving.lab.models import Experiment, State

MOST_LISTED = 100


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as it stands. `legs` are as far as it came, be it running, stopped or done; `result` is None until it
    ended by itself. While it runs, `value` is what is played, for the `repeat`-th time."""

    id: int
    pool: str
    title: str
    plan: SweepPlan
    state: str
    author: str
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    error: str
    is_stop_asked: bool
    fingerprint: dict[str, Any]
    legs: tuple[Leg, ...]
    result: SweepResult | None
    value: Any = None
    repeat: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state not in (State.WAITING, State.RUNNING)


def list_sweeps(*, limit: int = MOST_LISTED) -> list[Sweep]:
    """The newest sweeps of all pools, newest first."""
    return [_read(row) for row in Experiment.objects.filter(kind="sweep")[:limit]]


def find_sweep(sweep_id: int) -> Sweep | None:
    """The sweep of that number; None where there is none."""
    row = Experiment.objects.filter(kind="sweep", pk=sweep_id).first()
    return None if row is None else _read(row)


def _read(row: Experiment) -> Sweep:
    result = None if row.result is None else msgspec.convert(row.result, type=SweepResult)
    progress: Mapping[str, Any] = row.progress
    return Sweep(
        **common_fields(row),
        plan=msgspec.convert(row.plan, type=SweepPlan),
        legs=msgspec.convert(progress.get("legs", ()), type=tuple[Leg, ...]) if result is None else result.legs,
        result=result,
        value=progress.get("value"),
        repeat=progress.get("repeat", 0),
    )
