"""How far the simulator is from the real product: `make bench-lab`. Prints JSON and a table; asserts nothing.

The whole product is started with the default model, the cost of its steps is fitted to its own records, and then two
workloads are played by the real load tester under several settings, at shares of what the simulator says is their
capacity (one point has clients that ask as fast as they are answered, and so measures capacity itself). Each play is
simulated with the same seed, tunables and fitted cost. An error is `|simulated / measured - 1|` of throughput, of the
time to the first token (p50, p95) and of the gap between tokens (p95).

Every point is played in rounds, all points once a round, so that a slow stretch of the machine falls on all of them.
The first two rounds play the same traffic: how far they are apart is what chance alone does, and no simulator can be
nearer than that. Each further round plays another seed. And each play is simulated once more with costs that were
fitted to its own steps: what is wrong then is the simulator's, and not the machine's, whose speed has changed since the
first fit.

`--quick` plays few seconds a point. `--paced` puts an engine that computes nothing, and whose steps take what the
default cost model says, behind the real product: then no machine's speed changes, and all errors are the simulator's.
`--dry-run` starts no server and takes the simulator's word for the measurement,
with steps that cost 3 % more, to see that the arithmetic works.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from serving.contracts.tunables import Tunables
from serving.engine.models.importer import import_model
from serving.lab.costs.default import DEFAULT_COST
from serving.lab.simulator.simulation import simulate
from serving.lab.summaries import RunSummary
from serving.lab.workloads.arrivals import ClosedLoop, Poisson
from serving.lab.workloads.distributions import LogNormal
from serving.lab.workloads.workload import RequestClass, Workload
from tests.e2e.stack import REPOSITORY, Stack
from tests.lab.paced import PacedStack
from tests.lab.rigs import DryRig, Model, Rig, StackRig

CLIENTS: Final = 12
_CALIBRATION_CLIENTS = (1, 3, 8, 20)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Seconds of traffic for the fit, of each play, and of virtual time in which capacity and speed are simulated; and
    how many rounds."""

    calibration: float
    play: float
    rounds: int
    capacity: float
    speed: float


QUICK: Final = Scale(calibration=24, play=10, rounds=2, capacity=60, speed=300)
WHOLE: Final = Scale(calibration=120, play=60, rounds=3, capacity=600, speed=3600)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Tunables on top of the defaults, and the share of capacity at which they are tried; None: a closed loop."""

    name: str
    load: float | None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Play:
    """One play of a point, as it was measured and as it was simulated."""

    workload: str
    setting: str
    round: int
    seed: int
    rate: float | None
    num_requests: int
    num_lost: int
    measured: Mapping[str, float]
    simulated: Mapping[str, float]
    refitted: Mapping[str, float] | None
    """As simulated with the costs of its own steps; None where they were too few."""


SETTINGS: Final = (
    Setting(name="defaults", load=0.7),
    Setting(name="6 places", load=0.6, changes={"max_running": 6}),
    Setting(name="budget 96, chunk 48", load=0.6, changes={"max_batch_tokens": 96, "max_prefill_chunk": 48}),
    Setting(name="window 150 ms", load=0.4, changes={"batch_window_ms": 150.0}),
    Setting(name=f"{CLIENTS} clients", load=None),
)


def _workload(name: str, prompts: LogNormal, answers: LogNormal) -> Workload:
    return Workload(
        name=name,
        arrivals=Poisson(1.0),
        classes=(RequestClass(name=name, prompt_tokens=prompts, output_tokens=answers),),
        duration_seconds=1.0,
    )


WORKLOADS: Final = (
    _workload(
        "short chat",
        LogNormal(median=150, sigma=0.6, low=16, high=800),
        LogNormal(median=48, sigma=0.5, low=8, high=160),
    ),
    _workload(
        "documents",
        LogNormal(median=600, sigma=0.4, low=200, high=1800),
        LogNormal(median=24, sigma=0.4, low=6, high=80),
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench_simulator")
    parser.add_argument("--quick", action="store_true", help="few seconds a point")
    parser.add_argument("--dry-run", action="store_true", help="no server: the simulator with slower steps")
    parser.add_argument("--paced", action="store_true", help="an engine that sleeps as long as its steps should take")
    parser.add_argument("--seconds", type=float, help="of each play")
    parser.add_argument("--rounds", type=int, help="the first two play the same traffic")
    parser.add_argument("--json", type=Path, help="where the figures go, beside standard output")
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick or options.dry_run else WHOLE
    scale = dataclasses.replace(scale, play=options.seconds or scale.play, rounds=options.rounds or scale.rounds)
    figures = measure(DryRig(), scale) if options.dry_run else _measure_product(scale, is_paced=options.paced)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    _say(json.dumps(figures))
    _say("\n".join(table_of(figures)))


def _measure_product(scale: Scale, *, is_paced: bool) -> dict[str, Any]:
    model = import_model(None, into=REPOSITORY / "var" / "test-models")
    with tempfile.TemporaryDirectory(prefix="footplate-bench-") as name:
        home = Path(name)
        stack = PacedStack.paced(home, model, DEFAULT_COST) if is_paced else Stack.over(home, model).start()
        try:
            return measure(StackRig(stack), scale)
        finally:
            stack.stop()


def measure(
    rig: Rig, scale: Scale, *, workloads: Sequence[Workload] = WORKLOADS, settings: Sequence[Setting] = SETTINGS
) -> dict[str, Any]:
    """All figures: the fit, each play, the errors of all, and how fast the simulator was."""
    _calibrate(rig, workloads, scale.calibration)
    cost, envelope = rig.fit()
    model = Model(cost, envelope)
    points = [
        (setting, loaded(workload, setting, model, seconds=scale.capacity))
        for workload in workloads
        for setting in settings
    ]
    plays = []
    for number in range(scale.rounds):
        for setting, workload in points:
            play = _play(rig, setting, workload, model=model, seconds=scale.play, number=number)
            _tell(play)
            plays.append(play)
    return {
        "cost": msgspec.to_builtins(cost),
        "plays": [dataclasses.asdict(play) for play in plays],
        **{
            title: {figure or "all": summarise(find(plays, figure)) for figure in (None, *plays[0].measured)}
            for title, find in _COMPARED.items()
        },
        "speed": _speed(points[0][1], model, seconds=scale.speed),
    }


def errors_of(plays: Sequence[Play], figure: str | None = None) -> list[float]:
    """How far simulation is from measurement, relatively: of one figure, or of all."""
    return _differences([(play.measured, play.simulated) for play in plays], figure)


def refitted_errors_of(plays: Sequence[Play], figure: str | None = None) -> list[float]:
    """The same, of simulations with the costs of the play's own steps, where there were enough."""
    return _differences([(play.measured, play.refitted) for play in plays if play.refitted is not None], figure)


def chance_of(plays: Sequence[Play], figure: str | None = None) -> list[float]:
    """How far two plays of the same traffic are apart, relatively to the first."""
    firsts = {(play.workload, play.setting, play.seed): play for play in reversed(plays)}
    pairs = [(firsts[play.workload, play.setting, play.seed], play) for play in plays]
    return _differences([(first.measured, play.measured) for first, play in pairs if first is not play], figure)


def _differences(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], figure: str | None) -> list[float]:
    return [
        abs(other[name] / value - 1)
        for first, other in pairs
        for name, value in first.items()
        if figure in (None, name)
    ]


_COMPARED: Final = {
    "errors": errors_of,
    "errors, costs of the play's own steps": refitted_errors_of,
    "chance alone": chance_of,
}


def summarise(errors: Sequence[float]) -> dict[str, float] | None:
    """Median and 95th percentile; None where there are none."""
    if not errors:
        return None
    return {
        "count": len(errors),
        "median": round(float(np.median(errors)), 4),
        "p95": round(float(np.quantile(errors, 0.95)), 4),
    }


def table_of(figures: Mapping[str, Any]) -> list[str]:
    """What is read first."""
    names = list(figures["plays"][0]["measured"])
    lines = [
        "of each figure: measured, simulated, how far that is off, and how far with the costs of the play's own steps",
        f"{'workload':<12}{'setting':<22}{'seed':>5}{'rate':>7}" + "".join(f"{name:>36}" for name in names),
    ]
    for play in figures["plays"]:
        cells = []
        for name, measured in play["measured"].items():
            simulated = play["simulated"][name]
            refitted = "–" if play["refitted"] is None else f"{play['refitted'][name] / measured - 1:+.1%}"
            cells.append(f"{measured:>10.1f}{simulated:>10.1f}{simulated / measured - 1:>+8.1%}{refitted:>8}")
        rate = "–" if play["rate"] is None else f"{play['rate']:.2f}"
        lines.append(f"{play['workload']:<12}{play['setting']:<22}{play['seed']:>5}{rate:>7}" + "".join(cells))
    lines.append("")
    for title in _COMPARED:
        for figure, found in figures[title].items():
            if found is not None:
                lines.append(f"{title:<40}{figure:<18}median {found['median']:>7.1%}   p95 {found['p95']:>7.1%}")
    speed = figures["speed"]
    lines.append(
        f"the simulator plays {speed['simulated_per_second']:,.0f} s and {speed['requests_per_second']:,.0f} requests "
        f"a second, on one process"
    )
    return lines


def _calibrate(rig: Rig, workloads: Sequence[Workload], seconds: float) -> None:
    """Traffic of every kind that is measured later, from an idle engine to a full one."""
    rig.tune({})
    each = seconds / (len(workloads) * len(_CALIBRATION_CLIENTS))
    for clients in _CALIBRATION_CLIENTS:
        for workload in workloads:
            rig.play(
                msgspec.structs.replace(
                    workload, arrivals=ClosedLoop(clients), duration_seconds=each, seed=1000 + clients
                )
            )


def _play(rig: Rig, setting: Setting, workload: Workload, *, model: Model, seconds: float, number: int) -> Play:
    tunables = rig.tune(setting.changes)
    seed = max(1, number)  # the first two rounds play the same
    asked = msgspec.structs.replace(workload, duration_seconds=seconds, warm_up_seconds=seconds / 10, seed=seed)
    measured = rig.play(asked)
    simulated = model.play(asked, tunables)
    own_cost = rig.refit(model.cost)
    refitted = None if own_cost is None else Model(own_cost, model.envelope).play(asked, tunables)
    return Play(
        workload=workload.name,
        setting=setting.name,
        round=number + 1,
        seed=seed,
        rate=workload.arrivals.rate if isinstance(workload.arrivals, Poisson) else None,
        num_requests=measured.total.num_requests,
        num_lost=measured.total.num_requests - measured.total.num_finished,
        measured=figures_of(measured),
        simulated=figures_of(simulated),
        refitted=None if refitted is None else figures_of(refitted),
    )


def loaded(workload: Workload, setting: Setting, model: Model, *, seconds: float) -> Workload:
    """The workload with arrivals at the setting's share of what finishes, by the simulator's word, when each place is
    taken again at once."""
    if setting.load is None:
        return msgspec.structs.replace(workload, arrivals=ClosedLoop(CLIENTS))
    tunables = Tunables().changed(dict(setting.changes))
    saturated = msgspec.structs.replace(
        workload,
        arrivals=ClosedLoop(tunables.max_running),
        duration_seconds=seconds,
        warm_up_seconds=seconds / 10,
    )
    capacity = model.play(saturated, tunables).total.requests_per_second
    return msgspec.structs.replace(workload, arrivals=Poisson(round(setting.load * capacity, 4)))


def figures_of(summary: RunSummary) -> dict[str, float]:
    """What is compared. Raises `ValueError` where nothing was streamed."""
    total = summary.total
    if total.ttft_ms is None or total.itl_ms is None:
        raise ValueError(f"{summary.workload}: no answer came: {summary.first_failure or 'too short a play'}")
    return {
        "output tokens/s": total.output_tokens_per_second,
        "TTFT p50, ms": total.ttft_ms.p50,
        "TTFT p95, ms": total.ttft_ms.p95,
        "ITL p95, ms": total.itl_ms.p95,
    }


def _speed(workload: Workload, model: Model, *, seconds: float) -> dict[str, float]:
    """Of so many seconds of open arrivals, on one process."""
    long = msgspec.structs.replace(workload, duration_seconds=seconds)
    result = simulate(long, tunables=Tunables(), envelope=model.envelope, cost=model.cost)
    return {
        "simulated_per_second": round(result.simulated_seconds / result.wall_seconds, 1),
        "requests_per_second": round(result.num_requests / result.wall_seconds, 1),
        "steps_per_second": round(result.num_steps / result.wall_seconds, 1),
    }


def _tell(play: Play) -> None:
    worst = max(errors_of([play]))
    sys.stderr.write(f"{play.round}: {play.workload}, {play.setting}: off by {worst:.0%} at most\n")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
