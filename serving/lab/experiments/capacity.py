"""How much a pool can serve of a workload: what it finishes a second when there is always more to do, and up to which
rate its answers are within their objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from serving.contracts.errors import InvalidValue
from serving.lab.experiments.bench import Bench
from serving.lab.recording import is_good
from serving.lab.summaries import Outcome
from serving.lab.workloads.arrivals import ClosedLoop, Poisson
from serving.lab.workloads.checking import MAX_RATE
from serving.lab.workloads.workload import Workload

PROBES: Final = (0.9, 0.7, 0.5, 0.3)
"""Shares of the saturation rate at which open arrivals are tried, from the top, until the answers are in time."""
IN_TIME: Final = 0.9
"""The share of requests within their objectives that counts as keeping up."""
_WARM_UP_SHARE: Final = 0.2
_FILLING_SHARE: Final = 0.5
"""Of the closed loop's time: its clients all begin at once, and it takes their answers' lengths to come apart."""
_THINK_SECONDS: Final = 0.25
"""Between a client's requests in the closed loop: who is refused must not ask again without end."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One rate that was tried, in requests a second (None: a closed loop, which has as many in work as there are
    places), and what came of it: requests a second that finished, or that their clients gave up in the middle, and
    those that met their objectives."""

    rate: float | None
    finished_per_second: float
    goodput_per_second: float
    in_time_ratio: float | None


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """`saturation_per_second` requests finish when there is always more to do: above that rate the queue grows without
    end (the utilisation of any queue must stay below 1). `goodput_per_second` is the most within their objectives that
    was seen at any rate, `goodput_rate` the highest rate at which nine of ten were in time (None: at none that was
    tried). `measured_by` names what it was taken over from, empty where it was measured here."""

    saturation_per_second: float
    goodput_per_second: float
    goodput_rate: float | None
    probes: tuple[Probe, ...]
    measured_by: str = ""


def measure_capacity(
    workload: Workload, bench: Bench, *, seconds: float, tell: Callable[[str, Sequence[Probe]], None]
) -> Capacity:
    """Measure what the bench's pool can serve of the workload's requests, playing `seconds` for each rate: a closed
    loop with a client for each place in the batch, which cannot overrun the queue, and then Poisson arrivals at shares
    of what it finished. `tell` hears what is played next, and the probes so far.

    Raises `InvalidValue` where nothing finishes within the time.
    """
    clients = int(bench.tunables()["max_running"])
    tell(f"{clients} clients that wait for nothing but their answers", ())
    probes = [
        _probe(msgspec.structs.replace(workload, arrivals=ClosedLoop(clients, _THINK_SECONDS)), bench, None, seconds)
    ]
    saturation = probes[0].finished_per_second
    if saturation <= 0:
        raise InvalidValue("capacity_seconds", seconds, "long enough for some request to finish in its second half")
    goodput_rate = None
    for share in PROBES:
        rate = min(MAX_RATE, round(share * saturation, 6))
        tell(f"{share:.0%} of what was finished then: {rate:.3g} requests/s", probes)
        probe = _probe(msgspec.structs.replace(workload, arrivals=Poisson(rate)), bench, rate, seconds)
        probes.append(probe)
        if probe.in_time_ratio is None or probe.in_time_ratio >= IN_TIME:
            goodput_rate = rate
            break
    return Capacity(
        saturation_per_second=saturation,
        goodput_per_second=max(probe.goodput_per_second for probe in probes),
        goodput_rate=goodput_rate,
        probes=tuple(probes),
    )


def _probe(workload: Workload, bench: Bench, rate: float | None, seconds: float) -> Probe:
    warm_up_seconds = seconds * (_FILLING_SHARE if rate is None else _WARM_UP_SHARE)
    played = msgspec.structs.replace(
        workload, duration_seconds=seconds, num_requests=None, warm_up_seconds=warm_up_seconds
    )
    title = "capacity: closed loop" if rate is None else f"capacity: {rate:.3g} requests/s"
    bench.play(played, title=title, point={"stage": "capacity", "rate": rate})
    return probe_of(bench.evidence().outcomes, played, rate)


def probe_of(outcomes: Sequence[Outcome], workload: Workload, rate: float | None) -> Probe:
    """What a run's requests say of its rate. Counted are those that ended between the warm-up and the end of the
    duration: what is finished when nobody sends any more would count for nothing that was offered."""
    begin, end = workload.warm_up_seconds, workload.duration_seconds
    assert end is not None, "a probe has a duration"
    slos = {each.name: each.slo for each in workload.classes}
    within = [each for each in outcomes if begin <= each.end_seconds < end]
    served = [each for each in within if each.ending in ("finished", "cancelled")]
    good = [each for each in served if is_good(each, slos[each.request_class])]
    judged = [each for each in within if each.ending != "cancelled"]
    return Probe(
        rate=rate,
        finished_per_second=round(len(served) / (end - begin), 6),
        goodput_per_second=round(len(good) / (end - begin), 6),
        in_time_ratio=round(len(good) / len(judged), 4) if judged else None,
    )
