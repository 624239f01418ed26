"""The form that orders a sweep, as it was typed, and the plan that it stands for. Pure, but for the workload's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from serving.contracts.errors import InvalidValue
from serving.contracts.texts import without_secrets
from serving.lab.experiments.sweep_plan import Dimension, Guard, SweepPlan, Way, read_dimension
from serving.lab.workloads.changing import changed
from serving.lab.workloads.workload import Workload

_WAYS: dict[str, Way] = {"played": "played", "simulated": "simulated", "simulated_first": "simulated_first"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepDraft:
    """The fields as typed. `margin` is in per cent."""

    pool: str = ""
    workload: str = "chat"
    seconds: str = "60"
    dimension: str = "max_running"
    values: str = ""
    second_dimension: str = ""
    second_values: str = ""
    way: str = "simulated_first"
    repeats: str = "3"
    settle_seconds: str = "5"
    margin: str = "10"
    guard_metric: str = ""
    guard_bound: str = ""
    guard_window: str = "10"

    def plan(self, find_workload: Callable[[str], Workload]) -> SweepPlan:
        """What it stands for. Raises `InvalidValue`, by the form's fields, and what `find_workload` does."""
        workload = find_workload(self.workload)
        if self.seconds.strip():
            workload = changed(workload, duration_seconds=_number("seconds", self.seconds))
        if self.way not in _WAYS:
            raise InvalidValue("way", self.way, "one of " + ", ".join(_WAYS))
        plan = SweepPlan(
            workload=workload,
            dimensions=tuple(self._dimensions()),
            way=_WAYS[self.way],
            repeats=_whole("repeats", self.repeats),
            settle_seconds=_number("settle_seconds", self.settle_seconds),
            margin=_number("margin", self.margin) / 100,
            guard=self._guard(),
        )
        plan.check()
        return plan

    def _dimensions(self) -> list[Dimension]:
        typed = [(self.dimension, self.values), (self.second_dimension, self.second_values)]
        return [read_dimension(f"{name}={values}" if values.strip() else name) for name, values in typed if name]

    def _guard(self) -> Guard | None:
        if not self.guard_metric:
            return None
        return Guard(
            metric=self.guard_metric,
            bound=_number("guardrail bound", self.guard_bound),
            window_seconds=_number("guardrail window", self.guard_window),
        )


def read_draft(post: Callable[[str, str], str]) -> SweepDraft:
    """A posted form (`post` gives a field, or a default), without the API keys that somebody may have pasted into it
    by mistake."""
    return SweepDraft(**{field: without_secrets(post(field, "")) for field in SweepDraft.__slots__})


def field_of(param: str | None, draft: SweepDraft) -> str:
    """The form's field that a refusal is about."""
    known = {
        "guardrail metric": "guard_metric",
        "guardrail bound": "guard_bound",
        "guardrail window": "guard_window",
        "dimensions": "dimension",
        "name": "workload",
        "duration_seconds": "seconds",
        draft.dimension: "values",
        draft.second_dimension: "second_values",
    }
    if param in SweepDraft.__slots__:
        return str(param)
    return known.get(param or "", "workload")


def _number(field: str, text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise InvalidValue(field, text, "a number") from None


def _whole(field: str, text: str) -> int:
    stripped = text.strip()
    if not stripped.isascii() or not stripped.isdigit() or len(stripped) > 6:
        raise InvalidValue(field, text, "a whole number")
    return int(stripped)
