"""What a sweep is to do: which dimension takes which values, in which order, and what ends it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from serving.contracts.errors import InvalidValue
from serving.contracts.guardrails import GUARDRAIL_METRICS, HIGHEST_BOUND_MS, is_share
from serving.contracts.tunables import TunableSpec, describe
from serving.lab.workloads.arrivals import Arrivals, ClosedLoop, Constant, Gamma, Poisson
from serving.lab.workloads.checking import MAX_CLIENTS, MAX_RATE, check_workload
from serving.lab.workloads.workload import Workload

LOADS: Final[Mapping[str, str]] = {"rate": "requests/s", "clients": "clients"}
"""The load itself as a dimension, with its unit."""

MAX_VALUES: Final = 24
MAX_REPEATS: Final = 10
MAX_SETTLE_SECONDS: Final = 300.0
_PROPOSED_BELOW, _PROPOSED_ABOVE = 3, 2
"""How often a proposed ladder halves and doubles the value in force."""

Way = Literal["played", "simulated", "simulated_first"]


class Dimension(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tunable, or `rate` or `clients` of the workload, and its values; none: they are proposed."""

    name: str
    values: tuple[Any, ...] = ()


class Guard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ends a sweep at once where `metric` of the pool's other traffic is above `bound` for `window_seconds` without a
    break. `bound` is in milliseconds, or a share of 1."""

    metric: str
    bound: float
    window_seconds: float = 10.0


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dimension, or two in turn: the second is swept with the first at the value that was found best. Each point
    waits `settle_seconds` after its change and is played `repeats` times, each with another seed. `num_beyond` points
    more are played after the SLO broke, so that the knee is seen. A point is only proposed with `margin` of the SLO to
    spare. `way`: on the engines, on the simulator, or on the simulator first and then its three best on the engines."""

    workload: Workload
    dimensions: tuple[Dimension, ...]
    way: Way = "played"
    repeats: int = 3
    settle_seconds: float = 5.0
    num_beyond: int = 1
    margin: float = 0.1
    guard: Guard | None = None

    def check(self) -> None:
        """Raise `InvalidValue`, naming field, value and bound, for what cannot be swept."""
        check_workload(self.workload)
        if not 1 <= len(self.dimensions) <= 2:
            raise InvalidValue("dimensions", len(self.dimensions), "one, or two that are swept in turn")
        names = [dimension.name for dimension in self.dimensions]
        if len(set(names)) < len(names):
            raise InvalidValue("dimensions", ", ".join(names), "each name once")
        for dimension in self.dimensions:
            _check_dimension(dimension, self.workload)
        _check_whole("repeats", self.repeats, low=1, high=MAX_REPEATS)
        _check_whole("num_beyond", self.num_beyond, low=0, high=MAX_VALUES)
        _check_within("settle_seconds", self.settle_seconds, low=0, high=MAX_SETTLE_SECONDS)
        _check_within("margin", self.margin, low=0, high=0.9)
        if self.guard is not None:
            _check_guard(self.guard)


def decode_plan(content: Mapping[str, Any]) -> SweepPlan:
    """A plan from what JSON holds; raises `InvalidValue` for what is none, or cannot be swept."""
    try:
        plan = msgspec.convert(content, type=SweepPlan)
    except msgspec.ValidationError as error:
        raise InvalidValue("plan", "…", f"that of a sweep: {error}") from None
    plan.check()
    return plan


def values_of(dimension: Dimension, *, tunables: Mapping[str, Any], workload: Workload) -> tuple[Any, ...]:
    """A dimension's values in the order in which they are played: numbers from the conservative end, which is the low
    one, choices as they were given. Where none are given, a ladder around the value in force."""
    values = dimension.values or _proposed(dimension.name, value_in_force(dimension.name, tunables, workload))
    spec = _spec_of(dimension.name)
    checked = [value if spec is None else spec.checked(value) for value in values]
    if any(isinstance(value, str) for value in checked):
        return tuple(dict.fromkeys(checked))
    return tuple(sorted(set(checked)))


def value_in_force(name: str, tunables: Mapping[str, Any], workload: Workload) -> Any:
    """The dimension's value before anything is changed; None where the workload has no such load."""
    return load_of(workload.arrivals, name) if name in LOADS else tunables[name]


def load_of(arrivals: Arrivals, name: str) -> float | int | None:
    """The arrivals' rate or number of clients; None where they have none that is one number."""
    if name == "clients":
        return arrivals.clients if isinstance(arrivals, ClosedLoop) else None
    return arrivals.rate if isinstance(arrivals, Constant | Poisson | Gamma) else None


def with_load(workload: Workload, name: str, value: Any) -> Workload:
    """The workload at another rate or number of clients; arrivals that have none become Poisson, or a closed loop."""
    arrivals = workload.arrivals
    changed: Arrivals
    if name == "clients":
        think_seconds = arrivals.think_seconds if isinstance(arrivals, ClosedLoop) else 0.0
        changed = ClosedLoop(int(value), think_seconds)
    elif isinstance(arrivals, Constant | Poisson | Gamma):
        changed = msgspec.structs.replace(arrivals, rate=float(value))
    else:
        changed = Poisson(float(value))
    return msgspec.structs.replace(workload, arrivals=changed)


def ladder(current: float, *, low: float, high: float, is_whole: bool) -> tuple[float, ...]:
    """Rising values around the one in force, each twice the one before, within the bounds, the one in force among
    them. What is 0 has no double: from there the ladder goes up from a hundredth of the range."""
    if current <= 0:
        first = max(low, (high - low) / 100)
        steps = [current, *(first * 2**step for step in range(_PROPOSED_BELOW + _PROPOSED_ABOVE))]
    else:
        steps = [current * 2**step for step in range(-_PROPOSED_BELOW, _PROPOSED_ABOVE + 1)]
    within = [min(high, max(low, step)) for step in steps]
    whole = [float(round(step)) for step in within] if is_whole else within
    return tuple(sorted({*whole, float(current)}))


def read_dimension(text: str) -> Dimension:
    """A dimension as people write it, `max_running=4,8,16`, or `max_running` alone; raises `InvalidValue`."""
    name, sign, listed = text.partition("=")
    name = name.strip()
    if not sign:
        return Dimension(name=name)
    parts = [part.strip() for part in listed.split(",") if part.strip()]
    if not parts:
        raise InvalidValue(name, listed, "values with commas between them")
    spec = _spec_of(name)
    if spec is not None and spec.kind in ("choice", "name"):
        return Dimension(name=name, values=tuple(parts))
    return Dimension(name=name, values=tuple(_number(name, part) for part in parts))


def _proposed(name: str, current: Any) -> tuple[Any, ...]:
    spec = _spec_of(name)
    if spec is not None and spec.kind == "choice":
        return spec.choices
    is_whole = name == "clients" or (spec is not None and spec.kind == "integer")
    low, high = _bounds(name, spec)
    if spec is not None and spec.unit == "ratio":
        steps: tuple[float, ...] = tuple({*(round(low + (high - low) * part / 4, 4) for part in range(5)), current})
    else:
        steps = ladder(float(current), low=low, high=high, is_whole=is_whole)
    return tuple(sorted(int(step) if is_whole else round(step, 4) for step in steps))


def _bounds(name: str, spec: TunableSpec | None) -> tuple[float, float]:
    if spec is None:
        return (1.0, float(MAX_CLIENTS)) if name == "clients" else (0.01, MAX_RATE)
    assert spec.low is not None, "every tunable number has both bounds"
    assert spec.high is not None, "every tunable number has both bounds"
    return spec.low, spec.high


def _spec_of(name: str) -> TunableSpec | None:
    return next((spec for spec in describe() if spec.name == name), None)


def _check_dimension(dimension: Dimension, workload: Workload) -> None:
    name, spec = dimension.name, _spec_of(dimension.name)
    if name not in LOADS and (spec is None or spec.kind == "name"):
        known = [spec.name for spec in describe() if spec.kind != "name"]
        raise InvalidValue("dimensions", name, "one of " + ", ".join([*known, *LOADS]))
    if len(dimension.values) > MAX_VALUES:
        raise InvalidValue(name, f"{len(dimension.values)} values", f"at most {MAX_VALUES} values")
    if name in LOADS and not dimension.values and load_of(workload.arrivals, name) is None:
        raise InvalidValue(name, "no values", "given values, as the workload has no such load to start from")
    for value in dimension.values:
        if spec is not None:
            spec.checked(value)
        elif name == "clients":
            _check_whole(name, value, low=1, high=MAX_CLIENTS)
        else:
            _check_within(name, value, low=0.001, high=MAX_RATE)


def _check_guard(guard: Guard) -> None:
    if guard.metric not in GUARDRAIL_METRICS:
        raise InvalidValue("guardrail metric", guard.metric, "one of " + ", ".join(GUARDRAIL_METRICS))
    _check_within("guardrail bound", guard.bound, low=0, high=1 if is_share(guard.metric) else HIGHEST_BOUND_MS)
    _check_within("guardrail window", guard.window_seconds, low=0, high=3600)


def _check_whole(name: str, value: Any, *, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidValue(name, value, f"a whole number from {low} to {high}")


def _check_within(name: str, value: Any, *, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(name, value, f"a number from {low:g} to {high:g}")


def _number(name: str, text: str) -> float | int:
    try:
        value = float(text)
    except ValueError:
        raise InvalidValue(name, text, "a number") from None
    if not math.isfinite(value):
        raise InvalidValue(name, text, "a number")
    return int(value) if value.is_integer() and "." not in text and "e" not in text.lower() else value
