"""Workloads made from others: another amount, seed or rate. Pure functions."""

from __future__ import annotations

import math

import msgspec

from serving.contracts.errors import InvalidValue
from serving.lab.workloads.arrivals import (
    Arrivals,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    Steps,
    Trace,
)
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.workload import Workload


def changed(
    workload: Workload,
    *,
    duration_seconds: float | None = None,
    num_requests: int | None = None,
    rate_scale: float = 1.0,
    seed: int | None = None,
) -> Workload:
    """The workload with another amount, seed or rate, where they are given. A duration or number given alone takes the
    place of the other, and a warm-up that would be all of it is cut to a tenth. Raises `InvalidValue`."""
    changes: dict[str, object] = {}
    if duration_seconds is not None or num_requests is not None:
        changes = {"duration_seconds": duration_seconds, "num_requests": num_requests}
        if duration_seconds is not None and workload.warm_up_seconds >= duration_seconds:
            changes["warm_up_seconds"] = duration_seconds / 10
        if duration_seconds is None and isinstance(workload.arrivals, Ramp | Steps):
            changes["duration_seconds"] = workload.duration_seconds
    if seed is not None:
        changes["seed"] = seed
    if rate_scale != 1.0:
        changes["arrivals"] = scaled(workload.arrivals, rate_scale)
    found = msgspec.structs.replace(workload, **changes)
    check_workload(found)
    return found


def scaled(arrivals: Arrivals, scale: float) -> Arrivals:
    """So many times as much traffic; clients of a closed loop are rounded, one at least. Raises `InvalidValue`."""
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidValue("rate scale", scale, "a number above 0")
    match arrivals:
        case Constant(rate):
            return Constant(rate * scale)
        case Poisson(rate):
            return Poisson(rate * scale)
        case Gamma(rate, cv):
            return Gamma(rate * scale, cv)
        case ClosedLoop(clients, think_seconds):
            return ClosedLoop(max(1, round(clients * scale)), think_seconds)
        case Ramp(start_rate, end_rate):
            return Ramp(start_rate * scale, end_rate * scale)
        case Steps(rates):
            return Steps(tuple(rate * scale for rate in rates))
        case Trace(requests, speed):
            return Trace(requests, speed * scale)


def mean_rate(workload: Workload) -> float | None:
    """Requests a second on an average; None for a closed loop, whose server decides."""
    match workload.arrivals:
        case Constant(rate) | Poisson(rate) | Gamma(rate, _):
            return rate
        case Ramp(start_rate, end_rate):
            return (start_rate + end_rate) / 2
        case Steps(rates):
            return sum(rates) / len(rates)
        case Trace(requests, speed):
            seconds = requests[-1].offset_seconds / speed
            return len(requests) / seconds if seconds else float(len(requests))
        case ClosedLoop():
            return None
