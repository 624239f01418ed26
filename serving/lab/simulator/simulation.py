"""A workload played by simulated engines: one, or a fleet over several processes.

Nothing here needs Django, Redis or a model, so that other processes start fast.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.recording import Recorder
from serving.lab.simulator.engine import SimulatedEngine
from serving.lab.summaries import Outcome, RunSummary
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import PlannedRequest, Workload

MOST_ENGINES = 1000
MOST_PROCESSES = 256
_ENGINES_WORTH_A_PROCESS = 2


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `simulated_seconds` passed in `wall_seconds`; `num_steps` is over all engines."""

    summary: RunSummary
    simulated_seconds: float
    wall_seconds: float
    num_engines: int
    num_processes: int
    num_steps: int
    num_requests: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some of a fleet's engines, by number, and all that they need."""

    workload: Workload
    tunables: Tunables
    envelope: Envelope
    cost: CostModel
    num_engines: int
    engines: tuple[int, ...]
    jumps: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    recorder: Recorder
    ended_at: float
    num_steps: int
    num_requests: int


def simulate(
    workload: Workload,
    *,
    tunables: Tunables,
    envelope: Envelope,
    cost: CostModel,
    num_engines: int = 1,
    num_processes: int | None = None,
    jumps: bool = True,
) -> Simulation:
    """Play the workload in virtual time through the real scheduler, behind the real door's verdicts.

    A fleet of `num_engines` has the arrivals split beforehand, in turns: engine i gets every n-th request, or its part
    of the clients. So it has no pull that evens out what is uneven, and no prefix that is sent where it is cached; its
    bounds on the queue are each engine's part of the pool's. `num_processes` (by default as many as there are
    processors) share the engines. Raises `InvalidValue`, naming field, value and bound.
    """
    _check("engines", num_engines, most=MOST_ENGINES)
    if num_processes is not None:
        _check("processes", num_processes, most=MOST_PROCESSES)
    began = time.perf_counter()
    count = min(num_processes or _usual_processes(num_engines), num_engines)
    parts = [
        _Part(
            workload=workload,
            tunables=_share_of(tunables, num_engines),
            envelope=envelope,
            cost=cost,
            num_engines=num_engines,
            engines=tuple(range(number, num_engines, count)),
            jumps=jumps,
        )
        for number in range(count)
    ]
    played = _play_all(parts)
    recorder = played[0].recorder
    for other in played[1:]:
        recorder.merge(other.recorder)
    recorder.outcomes.sort(key=_by_end)
    simulated_seconds = max([each.ended_at for each in played])
    if workload.duration_seconds is not None:
        simulated_seconds = max(simulated_seconds, workload.duration_seconds)
    return Simulation(
        summary=recorder.summary(wall_seconds=simulated_seconds, notes=_notes(cost, num_engines)),
        simulated_seconds=round(simulated_seconds, 3),
        wall_seconds=round(time.perf_counter() - began, 3),
        num_engines=num_engines,
        num_processes=count,
        num_steps=sum(each.num_steps for each in played),
        num_requests=sum(each.num_requests for each in played),
    )


def _play_all(parts: list[_Part]) -> list[_Played]:
    if len(parts) == 1:
        return [_play(parts[0])]
    # Not forked: whoever asks may have threads, and connections.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(parts), mp_context=context) as pool:
        return list(pool.map(_play, parts))


def _play(part: _Part) -> _Played:
    recorder = Recorder(part.workload, is_simulated=True)
    ended_at, num_steps, num_requests = 0.0, 0, 0
    for number, requests in _requests_by_engine(part):
        engine = SimulatedEngine(
            tunables=part.tunables,
            envelope=part.envelope,
            cost=part.cost,
            recorder=recorder,
            jumps=part.jumps,
        )
        arrivals = part.workload.arrivals
        if isinstance(arrivals, ClosedLoop):
            ended = engine.play_closed(
                requests,
                clients=_part_of(arrivals.clients, number, part.num_engines),
                think_seconds=arrivals.think_seconds,
                duration_seconds=part.workload.duration_seconds,
            )
        else:
            ended = engine.play_open(requests)
        ended_at = max(ended_at, ended)
        num_steps += engine.num_steps
        num_requests += engine.num_requests
    return _Played(recorder=recorder, ended_at=ended_at, num_steps=num_steps, num_requests=num_requests)


def _requests_by_engine(part: _Part) -> Iterator[tuple[int, Iterator[PlannedRequest]]]:
    """Each engine of the part with the requests that it gets. Drawn once: the others' are passed over."""
    if part.num_engines == 1:
        yield 0, plan_requests(part.workload)
        return
    if isinstance(part.workload.arrivals, ClosedLoop):
        for number in part.engines:
            yield number, itertools.islice(plan_requests(part.workload), number, None, part.num_engines)
        return
    shares: dict[int, list[PlannedRequest]] = {number: [] for number in part.engines}
    for planned in plan_requests(part.workload):
        share = shares.get(planned.index % part.num_engines)
        if share is not None:
            share.append(planned)
    for number in part.engines:
        # An engine's requests are let go as they are played.
        yield number, iter(shares.pop(number))


def _share_of(tunables: Tunables, num_engines: int) -> Tunables:
    """What one engine of a pool has of it: the bounds of the queue are the pool's."""
    if num_engines == 1:
        return tunables
    return msgspec.structs.replace(
        tunables,
        max_queue_requests=max(1, math.ceil(tunables.max_queue_requests / num_engines)),
        max_queue_tokens=max(1, math.ceil(tunables.max_queue_tokens / num_engines)),
    )


def _part_of(total: int, number: int, count: int) -> int:
    return total // count + (number < total % count)


def _usual_processes(num_engines: int) -> int:
    """A process takes a moment to start."""
    if num_engines < _ENGINES_WORTH_A_PROCESS:
        return 1
    return max(1, min(num_engines, len(os.sched_getaffinity(0)), MOST_PROCESSES))


def _notes(cost: CostModel, num_engines: int) -> tuple[str, ...]:
    notes = [
        "Simulated: the scheduler is the real one; time passes as a model of the costs of steps says"
        + (", the default one, which was not fitted to this engine." if cost.source == "default" else ".")
    ]
    if cost.fit is not None:
        notes.append(
            f"The model misses the duration of a step by {cost.fit.median_error:.0%} in the middle, by "
            f"{cost.fit.p95_error:.0%} in one of twenty, and that of all together by {abs(cost.fit.total_error):.1%}."
        )
    if num_engines > 1:
        notes.append(
            f"Arrivals were split beforehand over {num_engines} engines, in turns: nothing evens out their loads."
        )
    return tuple(notes)


def _by_end(outcome: Outcome) -> tuple[float, int]:
    return outcome.end_seconds, outcome.index


def _check(name: str, value: int, *, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidValue(name, value, f"a number from 1 to {most}")
