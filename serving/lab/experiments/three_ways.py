"""The same workload under static, windowed and continuous batching, in place, and what each costs.

The ways: static batching runs a batch to its end before the next forms; the window lets joins wait for company;
continuous batching lets sequences join and leave between any two steps (Yu et al. 2022, "Orca: A Distributed Serving
System for Transformer-Based Generative Models", section 3.1, iteration-level scheduling).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.contracts.tunables import Tunables
from serving.lab.experiments.bench import Bench, BrokenOff
from serving.lab.experiments.pictures import Picture, picture_of
from serving.lab.experiments.three_ways_figures import way_of
from serving.lab.experiments.three_ways_plan import WAYS, ThreeWaysPlan, WayName, decode_three_ways_plan
from serving.lab.experiments.three_ways_results import ThreeWaysResult
from serving.lab.experiments.three_ways_words import conclusions
from serving.lab.experiments.tuning import Overtaken
from serving.lab.summaries import RunSummary


def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
    """Play the comparison that an experiment's plan asks for (a `ThreeWaysPlan`); its `ThreeWaysResult`, as JSON holds
    them. Raises as `play_three_ways`."""
    decoded = decode_three_ways_plan(plan)
    if decoded.way == "simulated":
        from serving.lab.experiments.sweep_simulated import simulated_bench_of

        bench = simulated_bench_of(bench)
    return dict(msgspec.to_builtins(play_three_ways(decoded, bench)))


def play_three_ways(plan: ThreeWaysPlan, bench: Bench) -> ThreeWaysResult:
    """Play each way as often as is planned.

    Raises `InvalidValue` for a plan that cannot be played, `Overtaken` where somebody else changes the pool meanwhile,
    `Stopped` once it is asked to end, and what the bench raises. What was changed is put back by whoever plays.
    """
    plan.check()
    plan.check_against(Tunables().changed(bench.tunables()))
    runs: dict[WayName, list[RunSummary]] = {name: [] for name in WAYS}
    pictures: dict[WayName, Picture] = {}
    order = plan.order()
    for repeat, ways in enumerate(order):
        for name in ways:
            bench.tell({"doing": f"{name}, {repeat + 1} of {plan.repeats}", "num_done": sum(map(len, runs.values()))})
            runs[name].append(_play(plan, bench, name, repeat))
            if name not in pictures and (picture := picture_of(bench.evidence().steps)) is not None:
                pictures[name] = picture
    ways_found = tuple(
        way_of(
            name,
            plan.changes_of(name),
            runs[name],
            continuous=runs["continuous"],
            picture=pictures.get(name),
        )
        for name in WAYS
    )
    return ThreeWaysResult(
        pool=bench.pool,
        workload=plan.workload.name,
        is_simulated=runs["static"][0].is_simulated,
        ways=ways_found,
        order=order,
        conclusions=conclusions(ways_found),
        notes=_notes(plan, runs["static"][0]),
    )


def _play(plan: ThreeWaysPlan, bench: Bench, name: WayName, repeat: int) -> RunSummary:
    if (said := bench.overtaken()) is not None:
        raise Overtaken(said)
    bench.retune(plan.changes_of(name), reason=f"three ways of batching: {name}")
    bench.pause(plan.settle_seconds)
    workload = msgspec.structs.replace(plan.workload, seed=plan.workload.seed + repeat)
    try:
        return bench.play(
            workload,
            title=f"{name}, {repeat + 1} of {plan.repeats}",
            point={"way": name, "repeat": repeat + 1},
            watch=bench.overtaken,
        )
    except BrokenOff as error:
        raise Overtaken(error.reason) from None


def _notes(plan: ThreeWaysPlan, run: RunSummary) -> tuple[str, ...]:
    notes = [
        "Padding is counted, not computed: this engine's batches are ragged in every mode, so that static batching "
        "costs more still on an engine that pads.",
    ]
    if plan.repeats == 1:
        notes.append("Each way was played once: its confidence interval is an assumed one.")
    return (*notes, *run.notes)
