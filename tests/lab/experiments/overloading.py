"""Requests, summaries and facts for tests of overload tests: a queue of one place after another, by hand."""

from __future__ import annotations

from typing import Any

from serving.contracts.tunables import Tunables
from serving.lab.experiments.capacity import Capacity
from serving.lab.experiments.evidence import AtRest, Evidence
from serving.lab.experiments.overload_facts import Facts
from serving.lab.experiments.overload_plan import Criteria
from serving.lab.experiments.overload_results import Verdict
from serving.lab.experiments.overload_stages import stages_of
from serving.lab.recording import Gauges, Recorder
from serving.lab.summaries import Outcome
from serving.lab.workloads.arrivals import Steps
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Slo, Workload

MULTIPLES = (0.5, 2.0, 0.5)
STAGE_SECONDS = 10.0
CAPACITY = Capacity(saturation_per_second=2.0, goodput_per_second=2.0, goodput_rate=1.8, probes=())
EMPTY = AtRest(num_running=0, num_waiting=0, permits_requests=0, permits_tokens=0)


def a_class(name: str = "chat", *, tenant: str = "") -> RequestClass:
    return RequestClass(
        name=name, prompt_tokens=Fixed(64), output_tokens=Fixed(16), tenant=tenant, slo=Slo(ttft_ms=1000)
    )


def a_workload(*classes: RequestClass) -> Workload:
    return Workload(
        name="w",
        arrivals=Steps(tuple(2.0 * each for each in MULTIPLES)),
        classes=classes or (a_class(),),
        duration_seconds=STAGE_SECONDS * len(MULTIPLES),
    )


def served(index: int, due: float, *, wait: float = 0.1, **changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "index": index,
        "request_class": "chat",
        "tenant": "",
        "due_seconds": due,
        "end_seconds": due + wait + 0.4,
        "ending": "finished",
        "num_prompt_tokens": 64,
        "num_output_tokens": 16,
        "is_streamed": True,
        "queue_seconds": wait,
        "ttft_seconds": wait + 0.1,
        "tpot_seconds": 0.02,
        "e2e_seconds": wait + 0.4,
    }
    return Outcome(**{**values, **changes})


def refused(index: int, due: float, *, after: float = 0.01, retry: float | None = 1.0, **changes: Any) -> Outcome:
    values = {
        "end_seconds": due + after,
        "ending": "refused",
        "num_output_tokens": 0,
        "queue_seconds": None,
        "ttft_seconds": None,
        "tpot_seconds": None,
        "e2e_seconds": after,
        "code": "queue_full",
        "retry_after_seconds": retry,
    }
    return served(index, due, **{**values, **changes})


def a_course() -> list[Outcome]:
    """One request a second when it is calm; four a second for ten seconds, of which every second one is refused and
    the others wait for half a second."""
    calm = [served(index, float(index)) for index in range(10)]
    rush = [
        served(100 + index, 10 + index / 4, wait=0.5) if index % 2 == 0 else refused(100 + index, 10 + index / 4)
        for index in range(40)
    ]
    after = [served(200 + index, 20.2 + index) for index in range(9)]
    return [*calm, *rush, *after]


def facts_of(
    outcomes: list[Outcome] | None = None,
    *,
    workload: Workload | None = None,
    is_simulated: bool = False,
    logged: dict[str, int] | None = None,
    rest: AtRest | None = EMPTY,
    permits: tuple[int, int] = (2, 128),
    kv_used_ratio: float = 0.4,
    criteria: Criteria | None = None,
    capacity: Capacity = CAPACITY,
    **tunables: Any,
) -> Facts:
    """What is known of a course. Unless they say otherwise, log and gauges tell what was."""
    found = a_course() if outcomes is None else outcomes
    played = workload or a_workload()
    recorder = Recorder(played, is_simulated=is_simulated)
    for outcome in found:
        recorder.note_arrival(at_seconds=outcome.due_seconds)
        recorder.end(outcome)
    for second in range(30):
        waiting = 1.0 if 10 <= second < 20 else 0.1
        gauges = Gauges(
            num_waiting=waiting,
            kv_used_ratio=kv_used_ratio,
            permits_requests=permits[0],
            permits_tokens=permits[1],
            preemptions=0,
        )
        recorder.note_gauges(second, gauges)
    if logged is None and not is_simulated:
        logged = {"finished": 39, "refused": sum(each.ending == "refused" for each in found)}
    slos = {each.name: each.slo for each in played.classes}
    return Facts(
        workload=played,
        summary=recorder.summary(wall_seconds=30.0),
        evidence=Evidence(outcomes=tuple(found), logged=logged, rest=None if is_simulated else rest),
        tunables=Tunables().changed(tunables).as_dict(),
        capacity=capacity,
        stages=stages_of(found, MULTIPLES, stage_seconds=STAGE_SECONDS, slos=slos),
        criteria=criteria or Criteria(),
    )


def named(verdicts: tuple[Verdict, ...], name: str) -> Verdict:
    """The verdict of that name."""
    return next(verdict for verdict in verdicts if verdict.name == name)
