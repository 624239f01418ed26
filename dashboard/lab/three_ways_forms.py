"""The form that orders a comparison of the three ways of batching, as it was typed, and the plan that it stands for.
Pure, but for the workload's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from dashboard.lab.overloads_forms import number
from serving.contracts.errors import InvalidValue
from serving.contracts.texts import without_secrets
from serving.lab.experiments.three_ways_plan import ThreeWaysPlan
from serving.lab.workloads.changing import changed
from serving.lab.workloads.workload import Workload

_WAYS: dict[str, Literal["played", "simulated"]] = {"played": "played", "simulated": "simulated"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThreeWaysDraft:
    """The fields as typed."""

    pool: str = ""
    workload: str = "bulk"
    seconds: str = "60"
    repeats: str = "3"
    static_window_ms: str = "1000"
    window_ms: str = "250"
    settle_seconds: str = "5"
    way: str = "simulated"

    def plan(self, find_workload: Callable[[str], Workload]) -> ThreeWaysPlan:
        """What it stands for. Raises `InvalidValue`, by the form's fields, and what `find_workload` does."""
        workload = find_workload(self.workload)
        if self.seconds.strip():
            workload = changed(workload, duration_seconds=number("seconds", self.seconds))
        if self.way not in _WAYS:
            raise InvalidValue("way", self.way, "one of " + ", ".join(_WAYS))
        plan = ThreeWaysPlan(
            workload=workload,
            static_window_ms=number("static_window_ms", self.static_window_ms),
            window_ms=number("window_ms", self.window_ms),
            repeats=_whole("repeats", self.repeats),
            settle_seconds=number("settle_seconds", self.settle_seconds),
            way=_WAYS[self.way],
        )
        plan.check()
        return plan


def read_draft(post: Callable[[str, str], str]) -> ThreeWaysDraft:
    """A posted form (`post` gives a field, or a default), without the API keys that somebody may have pasted into it
    by mistake."""
    return ThreeWaysDraft(**{field: without_secrets(post(field, "")) for field in ThreeWaysDraft.__slots__})


def field_of(param: str | None) -> str:
    """The form's field that a refusal is about."""
    if param in ThreeWaysDraft.__slots__:
        return str(param)
    return {"duration_seconds": "seconds"}.get(param or "", "workload")


def _whole(field: str, text: str) -> int:
    stripped = text.strip()
    if not stripped.isascii() or not stripped.isdigit() or len(stripped) > 6:
        raise InvalidValue(field, text, "a whole number")
    return int(stripped)
