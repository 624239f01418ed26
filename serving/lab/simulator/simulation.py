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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import MappingProxyType

import msgspec

from serving.contracts.errors import InvalidValue
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.recording import Recorder, measured_until
from serving.lab.simulator.engine import SimulatedEngine
from serving.lab.simulator.left_out import notes_of_left_out, part_of_quotas
from serving.lab.summaries import Outcome, RunSummary
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import PlannedRequest, Workload

MOST_ENGINES = 1000
MOST_PROCESSES = 256
_ENGINES_WORTH_A_PROCESS = 2
_SMALL_SHARE, _USUAL_PROMPT = 32, 1024


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `simulated_seconds` passed in `wall_seconds`; `num_steps` is over all engines. `outcomes` are
    the requests in the order in which they ended, where they were asked for."""

    summary: RunSummary
    simulated_seconds: float
    wall_seconds: float
    num_engines: int
    num_processes: int
    num_steps: int
    num_requests: int
    outcomes: tuple[Outcome, ...] = ()


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
    quotas: Mapping[str, Quotas]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    recorder: Recorder
    ended_at: float
    num_steps: int
    num_requests: int
    waiting_requests: Counter[int]
    waiting_tokens: Counter[int]


def simulate(
    workload: Workload,
    *,
    tunables: Tunables,
    envelope: Envelope,
    cost: CostModel,
    num_engines: int = 1,
    num_processes: int | None = None,
    jumps: bool = True,
    keeps_outcomes: bool = False,
    quotas: Mapping[str, Quotas] = MappingProxyType({}),
) -> Simulation:
    """Play the workload in virtual time through the real scheduler, behind the real door's verdicts.

    A fleet of `num_engines` has the arrivals split beforehand, in turns: engine i gets every n-th request, or its part
    of the clients. So it has no pull that evens out what is uneven, and no prefix that is sent where it is cached. Each
    engine is held to its part of the bounds on the pool's queue, unless the pool never came to them: then none is, and
    the notes say which. `num_processes` (by default as many as there are processors) share the engines. `quotas`
    are those of tenants, by the names that the workload has of them: the door's, but for those of days and months. A
    fleet's engines are each held to their part of them. What else is not simulated, and matters, the notes say. Raises
    `InvalidValue`, naming field, value and bound.
    """
    _check("engines", num_engines, most=MOST_ENGINES)
    if num_processes is not None:
        _check("processes", num_processes, most=MOST_PROCESSES)
    began = time.perf_counter()
    count = min(num_processes or _usual_processes(num_engines), num_engines)
    parts = [
        _Part(
            workload=workload,
            tunables=tunables,
            envelope=envelope,
            cost=cost,
            num_engines=num_engines,
            engines=tuple(range(number, num_engines, count)),
            jumps=jumps,
            quotas={tenant: part_of_quotas(each, num_engines) for tenant, each in quotas.items()},
        )
        for number in range(count)
    ]
    played, share = _play_fleet(parts)
    recorder = played[0].recorder
    for other in played[1:]:
        recorder.merge(other.recorder)
    recorder.outcomes.sort(key=_by_end)
    num_requests = sum(each.num_requests for each in played)
    ended_at = max([each.ended_at for each in played])
    simulated_seconds = measured_until(workload, ended_at=ended_at, num_requests=num_requests)
    most_requests, most_tokens = _most_waiting(played)
    summary = recorder.summary(
        wall_seconds=simulated_seconds,
        notes=[
            *_notes(cost, num_engines, share),
            *notes_of_left_out(workload, tunables=tunables, cost=cost, quotas=quotas, num_engines=num_engines),
        ],
    )
    return Simulation(
        summary=msgspec.structs.replace(summary, peak_permits_requests=most_requests, peak_permits_tokens=most_tokens),
        simulated_seconds=round(simulated_seconds, 3),
        wall_seconds=round(time.perf_counter() - began, 3),
        num_engines=num_engines,
        num_processes=count,
        num_steps=sum(each.num_steps for each in played),
        num_requests=num_requests,
        outcomes=tuple(recorder.outcomes) if keeps_outcomes else (),
    )


def _play_fleet(parts: list[_Part]) -> tuple[list[_Played], Tunables | None]:
    """What came of all parts, and what each engine was held to where it was held to its part of the queue's bounds.

    Where that part is small, chance fills an engine's while the pool has room. So it is first seen whether the pool
    comes to its bounds at all, with each engine held to the whole of them.
    """
    whole, num_engines = parts[0].tunables, parts[0].num_engines
    if num_engines == 1:
        return _play_all(parts), None
    share = _share_of(whole, num_engines, longest=parts[0].envelope.max_model_len)
    if share.max_queue_requests < _SMALL_SHARE or share.max_queue_tokens < _SMALL_SHARE * _USUAL_PROMPT:
        played = _play_all(parts)
        most_requests, most_tokens = _most_waiting(played)
        if most_requests < whole.max_queue_requests and most_tokens < whole.max_queue_tokens:
            return played, None
    return _play_all([dataclasses.replace(part, tunables=share) for part in parts]), share


def _most_waiting(played: Sequence[_Played]) -> tuple[int, int]:
    """The most requests, and prompt tokens, that waited in front of all engines at the end of a second."""
    requests: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for each in played:
        requests.update(each.waiting_requests)
        tokens.update(each.waiting_tokens)
    return max(requests.values(), default=0), max(tokens.values(), default=0)


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
    waiting_requests: Counter[int] = Counter()
    waiting_tokens: Counter[int] = Counter()
    for number, requests in _requests_by_engine(part):
        engine = SimulatedEngine(
            tunables=part.tunables,
            envelope=part.envelope,
            cost=part.cost,
            recorder=recorder,
            jumps=part.jumps,
            quotas=part.quotas,
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
        waiting_requests.update(engine.waiting_requests)
        waiting_tokens.update(engine.waiting_tokens)
    return _Played(
        recorder=recorder,
        ended_at=ended_at,
        num_steps=num_steps,
        num_requests=num_requests,
        waiting_requests=waiting_requests,
        waiting_tokens=waiting_tokens,
    )


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


def _share_of(tunables: Tunables, num_engines: int, *, longest: int) -> Tunables:
    """What one engine of a pool has of the bounds on its queue; a prompt that the pool lets in has room, `longest`
    tokens at most."""
    tokens = max(math.ceil(tunables.max_queue_tokens / num_engines), min(longest, tunables.max_queue_tokens))
    return msgspec.structs.replace(
        tunables,
        max_queue_requests=math.ceil(tunables.max_queue_requests / num_engines),
        max_queue_tokens=tokens,
    )


def _part_of(total: int, number: int, count: int) -> int:
    return total // count + (number < total % count)


def _usual_processes(num_engines: int) -> int:
    """A process takes a moment to start."""
    if num_engines < _ENGINES_WORTH_A_PROCESS:
        return 1
    return max(1, min(num_engines, len(os.sched_getaffinity(0)), MOST_PROCESSES))


def _notes(cost: CostModel, num_engines: int, share: Tunables | None) -> tuple[str, ...]:
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
    if share is not None:
        notes.append(
            f"Each engine was held to its part of the bounds on the queue, {share.max_queue_requests} requests and "
            f"{share.max_queue_tokens} tokens: one may refuse while another has room."
        )
    elif num_engines > 1:
        notes.append("The pool never came to the bounds on its queue, so no engine was held to a part of them.")
    return tuple(notes)


def _by_end(outcome: Outcome) -> tuple[float, int]:
    return outcome.end_seconds, outcome.index


def _check(name: str, value: int, *, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidValue(name, value, f"a number from 1 to {most}")
