"""What an autopilot is to hold, and what it may move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from serving.contracts.errors import InvalidValue
from serving.contracts.guardrails import GUARDRAIL_METRICS, HIGHEST_BOUND_MS
from serving.contracts.tunables import TunableSpec, describe
from serving.lab.autopilot.levers import LEVERS

OBJECTIVES: Final[Mapping[str, str]] = {
    name: title for name, title in GUARDRAIL_METRICS.items() if name.endswith("_p95")
}
"""What may be held: percentiles of the last minute, in milliseconds."""

SHORTEST_SECONDS, LONGEST_SECONDS = 30.0, 3600.0
MOST_SAMPLES = 10_000


class Objective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`metric` is to be at most `bound_ms`."""

    metric: str
    bound_ms: float


class Lever(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tunable that may be moved, and how far: from `low` to `high`, both included."""

    field: str
    low: float
    high: float


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is held and what is moved for it.

    An objective that is missed for `missed_seconds` without a break leads to a move. A move is judged after
    `judged_seconds`, once the last minute has `least_samples` of what it is to better: where that is not better by
    `least_gain_ratio`, or where another objective is missed that was met, it is undone, and not tried again for
    `retry_seconds`. Where all objectives are met with room (below `slack_ratio` of their bounds) for `calm_seconds`,
    the latest of the moves that still stand is taken back.
    """

    objectives: tuple[Objective, ...]
    levers: tuple[Lever, ...]
    missed_seconds: float = 60.0
    judged_seconds: float = 120.0
    retry_seconds: float = 1800.0
    calm_seconds: float = 900.0
    least_samples: int = 20
    least_gain_ratio: float = 0.05
    slack_ratio: float = 0.6

    def check(self) -> None:
        """Raise `InvalidValue`, naming field, value and bounds, for terms that nobody can keep."""
        _check_names("objectives", [objective.metric for objective in self.objectives], OBJECTIVES)
        for objective in self.objectives:
            _check_within(f"objectives.{objective.metric}", objective.bound_ms, low=1, high=HIGHEST_BOUND_MS)
        _check_names("levers", [lever.field for lever in self.levers], LEVERS)
        specs = {spec.name: spec for spec in describe()}
        for lever in self.levers:
            _check_lever(lever, specs[lever.field])
        for name in ("missed_seconds", "judged_seconds"):
            _check_within(name, getattr(self, name), low=SHORTEST_SECONDS, high=LONGEST_SECONDS)
        for name in ("retry_seconds", "calm_seconds"):
            _check_within(name, getattr(self, name), low=SHORTEST_SECONDS, high=24 * LONGEST_SECONDS)
        if self.judged_seconds < 60:
            raise InvalidValue("judged_seconds", self.judged_seconds, "at least 60: figures are of the last minute")
        _check_within("least_samples", self.least_samples, low=5, high=MOST_SAMPLES)
        _check_within("least_gain_ratio", self.least_gain_ratio, low=0, high=0.9)
        _check_within("slack_ratio", self.slack_ratio, low=0.05, high=0.95)

    def lever(self, field: str) -> Lever | None:
        """The lever of that tunable; None where it may not be moved."""
        return next((lever for lever in self.levers if lever.field == field), None)

    def bound_of(self, metric: str) -> float | None:
        """The bound on a metric; None where it is no objective."""
        return next((each.bound_ms for each in self.objectives if each.metric == metric), None)


def decode_terms(content: Any) -> Terms:
    """Terms from what JSON holds; raises `InvalidValue` for what is none, or cannot be kept."""
    try:
        terms = msgspec.convert(content, type=Terms)
    except msgspec.ValidationError as error:
        raise InvalidValue("terms", None, f"an autopilot's terms: {error}") from None
    terms.check()
    return terms


def _check_names(name: str, given: list[str], known: Mapping[str, Any]) -> None:
    if not given:
        raise InvalidValue(name, [], "at least one of " + ", ".join(known))
    for each in given:
        if each not in known:
            raise InvalidValue(name, each, "one of " + ", ".join(known))
    if len(set(given)) < len(given):
        raise InvalidValue(name, ", ".join(given), "each name once")


def _check_lever(lever: Lever, spec: TunableSpec) -> None:
    assert spec.low is not None, "a lever is a number"
    assert spec.high is not None, "a lever is a number"
    for name in ("low", "high"):
        value = getattr(lever, name)
        _check_within(f"levers.{lever.field}.{name}", value, low=spec.low, high=spec.high)
        spec.checked(int(value) if spec.kind == "integer" and float(value).is_integer() else value)
    if lever.low >= lever.high:
        raise InvalidValue(f"levers.{lever.field}.low", lever.low, f"a number below its high, {lever.high:g}")


def _check_within(name: str, value: float, *, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(name, value, f"a number from {low:g} to {high:g}")
