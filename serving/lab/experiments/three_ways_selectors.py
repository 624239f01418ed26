"""Reading comparisons of the three ways of batching. Blocking: async code calls these through
`serving.threads.in_thread`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from serving.lab.experiments.kept import common_fields
from serving.lab.experiments.three_ways_plan import ThreeWaysPlan
from serving.lab.experiments.three_ways_results import ThreeWaysResult
from serving.lab.models import Experiment, State

KIND: Final = "three_ways"
MOST_LISTED: Final = 100


class ThreeWays(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison as it stands. `doing` is what it plays now, after `num_done` runs; `result` is None until it
    ended by itself."""

    id: int
    pool: str
    title: str
    plan: ThreeWaysPlan
    state: str
    author: str
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    error: str
    is_stop_asked: bool
    fingerprint: dict[str, Any]
    result: ThreeWaysResult | None
    doing: str = ""
    num_done: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state not in (State.WAITING, State.RUNNING)


def list_three_ways(*, limit: int = MOST_LISTED) -> list[ThreeWays]:
    """The newest comparisons of all pools, newest first."""
    return [_read(row) for row in Experiment.objects.filter(kind=KIND)[:limit]]


def find_three_ways(experiment_id: int) -> ThreeWays | None:
    """The comparison of that number; None where there is none."""
    row = Experiment.objects.filter(kind=KIND, pk=experiment_id).first()
    return None if row is None else _read(row)


def _read(row: Experiment) -> ThreeWays:
    progress: Mapping[str, Any] = row.progress
    return ThreeWays(
        **common_fields(row),
        plan=msgspec.convert(row.plan, type=ThreeWaysPlan),
        result=None if row.result is None else msgspec.convert(row.result, type=ThreeWaysResult),
        doing=progress.get("doing", ""),
        num_done=progress.get("num_done", 0),
    )
