"""The form that orders an overload test, as it was typed, and the plan that it stands for. Pure, but for the workload's
name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from serving.contracts.errors import InvalidValue
from serving.contracts.texts import without_secrets
from serving.lab.experiments.overload_plan import Criteria, OverloadPlan, Way
from serving.lab.workloads.workload import Workload

_WAYS: dict[str, Way] = {"played": "played", "simulated": "simulated"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverloadDraft:
    """The fields as typed. Shares are in per cent. `reuse` is on where a capacity that is known is to be taken over."""

    pool: str = ""
    workload: str = "chat"
    multiples: str = "1, 2"
    stage_seconds: str = "60"
    capacity_seconds: str = "60"
    reuse: str = "on"
    way: str = "simulated"
    max_refusal_ms: str = "1000"
    min_goodput: str = "80"
    max_recovery_seconds: str = "30"
    recovery_factor: str = "2"
    wait_slack_ms: str = "1000"
    min_truthful: str = "90"
    min_fairness: str = "0.9"
    max_littles_error: str = "30"

    def plan(self, find_workload: Callable[[str], Workload]) -> OverloadPlan:
        """What it stands for. Raises `InvalidValue`, by the form's fields, and what `find_workload` does."""
        if self.way not in _WAYS:
            raise InvalidValue("way", self.way, "one of " + ", ".join(_WAYS))
        plan = OverloadPlan(
            workload=find_workload(self.workload),
            multiples=tuple(number("multiples", each) for each in self.multiples.split(",")),
            stage_seconds=number("stage_seconds", self.stage_seconds),
            capacity_seconds=number("capacity_seconds", self.capacity_seconds),
            criteria=Criteria(
                max_refusal_ms=number("max_refusal_ms", self.max_refusal_ms),
                min_goodput_ratio=number("min_goodput", self.min_goodput) / 100,
                max_recovery_seconds=number("max_recovery_seconds", self.max_recovery_seconds),
                recovery_factor=number("recovery_factor", self.recovery_factor),
                wait_slack_ms=number("wait_slack_ms", self.wait_slack_ms),
                min_truthful_ratio=number("min_truthful", self.min_truthful) / 100,
                min_fairness=number("min_fairness", self.min_fairness),
                max_littles_error=number("max_littles_error", self.max_littles_error) / 100,
            ),
            way=_WAYS[self.way],
        )
        plan.check()
        return plan


def read_draft(post: Callable[[str, str], str]) -> OverloadDraft:
    """A posted form (`post` gives a field, or a default), without the API keys that somebody may have pasted into it
    by mistake."""
    return OverloadDraft(**{field: without_secrets(post(field, "")) for field in OverloadDraft.__slots__})


def field_of(param: str | None) -> str:
    """The form's field that a refusal is about."""
    known = {"min_goodput_ratio": "min_goodput", "min_truthful_ratio": "min_truthful"}
    if param in OverloadDraft.__slots__:
        return str(param)
    return known.get(param or "", "workload")


def number(field: str, text: str) -> float:
    """A number as typed. Raises `InvalidValue`."""
    try:
        return float(text.strip())
    except ValueError:
        raise InvalidValue(field, text, "a number") from None
