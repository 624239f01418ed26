"""What an overload test is to do, and by which criteria it passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from serving.contracts.errors import InvalidValue
from serving.lab.experiments.capacity import Capacity
from serving.lab.workloads.arrivals import Steps
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.workload import Workload

CALM: Final = 0.5
"""The multiple of capacity before and after: what is normal, and what the pool recovers at."""
MAX_MULTIPLES: Final = 6
MAX_MULTIPLE: Final = 10.0
LONGEST_STAGE_SECONDS: Final = 1800.0

POLICY: Final = (
    *("max_queue_requests", "max_queue_tokens", "max_queue_wait_ms", "early_reject", "slo_ttft_ms"),
    *("order", "max_running", "kv_limit_ratio"),
)
"""The tunables that say what happens to whom there is no room for."""

Way = Literal["played", "simulated"]


class Criteria(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what an overload test passes. `max_refusal_ms` bounds the p95 of how long the door takes to refuse;
    `min_goodput_ratio` is the share of the best goodput below capacity that must be left at the highest multiple;
    `max_recovery_seconds` is how soon after it answers are as before, which they are within `recovery_factor` times the
    p95 of then; `wait_slack_ms` is how much longer than
    `max_queue_wait_ms` somebody may have waited, since a queue is looked at between two steps; `min_truthful_ratio` is
    the share of refusals within whose Retry-After a place in the queue fell free; `min_fairness` is Jain's index over
    tenants; `max_littles_error` is by how much two accounts of the queue may differ."""

    max_refusal_ms: float = 1000.0
    min_goodput_ratio: float = 0.8
    max_recovery_seconds: float = 30.0
    recovery_factor: float = 2.0
    wait_slack_ms: float = 1000.0
    min_truthful_ratio: float = 0.9
    min_fairness: float = 0.9
    max_littles_error: float = 0.3


_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "max_refusal_ms": (1, 60_000),
    "min_goodput_ratio": (0, 1),
    "max_recovery_seconds": (0.1, 3600),
    "recovery_factor": (1, 10),
    "wait_slack_ms": (0, 60_000),
    "min_truthful_ratio": (0, 1),
    "min_fairness": (0, 1),
    "max_littles_error": (0.01, 10),
}


class OverloadPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workload's requests at half of capacity, at each of the `multiples` of it in turn, and at half again, each
    for `stage_seconds`; the first half of capacity is what recovery is held against. `capacity` is measured first,
    `capacity_seconds` for each rate, where it is not given."""

    workload: Workload
    multiples: tuple[float, ...] = (1.0, 2.0)
    stage_seconds: float = 60.0
    capacity_seconds: float = 60.0
    capacity: Capacity | None = None
    criteria: Criteria = Criteria()
    way: Way = "played"

    def check(self) -> None:
        """Raise `InvalidValue`, naming field, value and bound, for what cannot be played."""
        check_workload(self.workload)
        if not 1 <= len(self.multiples) <= MAX_MULTIPLES:
            raise InvalidValue("multiples", len(self.multiples), f"1 to {MAX_MULTIPLES} of them")
        for multiple in self.multiples:
            check_within("multiples", multiple, low=0.1, high=MAX_MULTIPLE)
        if list(self.multiples) != sorted(set(self.multiples)):
            raise InvalidValue("multiples", ", ".join(f"{each:g}" for each in self.multiples), "rising")
        if self.multiples[-1] <= 1:
            raise InvalidValue("multiples", self.multiples[-1], "above 1 at its end, or nothing is overloaded")
        check_within("stage_seconds", self.stage_seconds, low=1, high=LONGEST_STAGE_SECONDS)
        check_within("capacity_seconds", self.capacity_seconds, low=1, high=LONGEST_STAGE_SECONDS)
        for name, (low, high) in _BOUNDS.items():
            check_within(name, getattr(self.criteria, name), low=low, high=high)
        if self.stage_seconds < self.criteria.max_recovery_seconds:
            bound = (
                f"at least max_recovery_seconds, {self.criteria.max_recovery_seconds:g}: the last one shows recovery"
            )
            raise InvalidValue("stage_seconds", self.stage_seconds, bound)
        if self.capacity is not None:
            check_within("capacity", self.capacity.saturation_per_second, low=1e-6, high=1e6)

    @property
    def stages(self) -> tuple[float, ...]:
        """The multiples of capacity, one stage after the other."""
        return (CALM, *self.multiples, CALM)

    def workload_at(self, capacity: float) -> Workload:
        """What is played where `capacity` requests a second are: Poisson arrivals at each stage's rate. Nothing of it
        is warm-up, as the first stage is what the others are held against."""
        return msgspec.structs.replace(
            self.workload,
            arrivals=Steps(tuple(multiple * capacity for multiple in self.stages)),
            duration_seconds=self.stage_seconds * len(self.stages),
            num_requests=None,
            warm_up_seconds=0.0,
        )


def decode_overload_plan(content: Mapping[str, Any]) -> OverloadPlan:
    """A plan from what JSON holds; raises `InvalidValue` for what is none, or cannot be played."""
    try:
        plan = msgspec.convert(content, type=OverloadPlan)
    except msgspec.ValidationError as error:
        raise InvalidValue("plan", "…", f"that of an overload test: {error}") from None
    plan.check()
    return plan


def check_within(name: str, value: Any, *, low: float, high: float) -> None:
    """Raise `InvalidValue` for what is no number within the bounds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(name, value, f"a number from {low:g} to {high:g}")
