"""`manage.py sweep`: one setting at a time, in place or simulated, and the best value within the SLO."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from serving.contracts.errors import DomainError, InvalidValue
from serving.lab.experiments.sweep import play_sweep
from serving.lab.experiments.sweep_plan import Guard, SweepPlan, Way, read_dimension
from serving.lab.experiments.sweep_results import Leg, SweepResult
from serving.management.lab_experiments import play_on_pool, simulated_bench
from serving.management.lab_terms import add_workload_arguments, workload_of

_GUARD_FORM = "METRIC:BOUND[:WINDOW]"


class Command(BaseCommand):
    """Sweeps tunables or the load, and prints the points, the knee and what is best within the workload's SLO."""

    help = "Sweep one setting at a time over a workload: in place on a running pool, or on the simulator."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """What is swept, over which values, and how."""
        add_workload_arguments(parser)
        parser.add_argument("--pool", default=next(iter(settings.FOOTPLATE_POOLS)))
        parser.add_argument(
            "--set-dimension",
            action="append",
            required=True,
            metavar="NAME[=VALUE,…]",
            help="a tunable, rate or clients, with its values (without: proposed); twice: one after the other",
        )
        parser.add_argument("--repeats", type=int, default=3, help="of each point, each with another seed")
        parser.add_argument("--settle", type=float, default=5.0, metavar="SECONDS", help="after each change")
        parser.add_argument(
            "--beyond", type=int, default=1, help="points after the SLO broke, so that the knee is seen"
        )
        parser.add_argument(
            "--margin", type=float, default=0.1, help="of the SLO that a proposal leaves, from 0 to 0.9"
        )
        parser.add_argument(
            "--guardrail", metavar=_GUARD_FORM, help="end at once where the other traffic's METRIC is above BOUND"
        )
        parser.add_argument("--simulated", action="store_true", help="on the simulator alone: nothing is changed")
        parser.add_argument(
            "--simulate-first", action="store_true", help="on the simulator, then its three best points on the engines"
        )
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="simulated: on top of the pool's values"
        )
        parser.add_argument("--defaults", action="store_true", help="simulated: default tunables, costs and room")
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Sweep, then print."""
        try:
            plan = _plan_of(options)
            result = self._simulate(plan, options) if options["simulated"] else self._play(plan, options)
        except DomainError as error:
            raise CommandError(error.message) from None
        except KeyboardInterrupt as interrupt:
            raise CommandError(f"interrupted. {interrupt}".rstrip(), returncode=130) from None
        if options["json"]:
            self.stdout.write(json.dumps(msgspec.to_builtins(result)))
        else:
            self.stdout.write("\n".join(_lines_of(result)))

    def _simulate(self, plan: SweepPlan, options: dict[str, Any]) -> SweepResult:
        bench = simulated_bench(options)
        return play_sweep(plan, bench, simulated=lambda: bench)

    def _play(self, plan: SweepPlan, options: dict[str, Any]) -> SweepResult:
        title = f"{' and '.join(each.name for each in plan.dimensions)} with {plan.workload.name}"
        values, say = "swept from the values in force", self.stderr.write
        result = play_on_pool("sweep", plan, options, title=title, values=values, say=say)
        return msgspec.convert(result, type=SweepResult)


def _plan_of(options: dict[str, Any]) -> SweepPlan:
    if options["simulated"] and options["simulate_first"]:
        raise CommandError("--simulated plays nothing on the engines, and --simulate-first does: give one of them")
    way: Way = "simulated" if options["simulated"] else "simulated_first" if options["simulate_first"] else "played"
    plan = SweepPlan(
        workload=workload_of(options),
        dimensions=tuple(map(read_dimension, options["set_dimension"])),
        way=way,
        repeats=options["repeats"],
        settle_seconds=options["settle"],
        num_beyond=options["beyond"],
        margin=options["margin"],
        guard=None if options["guardrail"] is None else _guard_of(options["guardrail"]),
    )
    plan.check()
    return plan


def _guard_of(text: str) -> Guard:
    metric, *numbers = text.split(":")
    try:
        bound, *window = map(float, numbers)
        return Guard(metric=metric, bound=bound, **({"window_seconds": window[0]} if window else {}))
    except ValueError:
        raise InvalidValue("guardrail", text, f"of the form {_GUARD_FORM}") from None


def _lines_of(result: SweepResult) -> Sequence[str]:
    lines: list[str] = []
    for leg in result.legs:
        lines += [*_table_of(leg), ""]
    return [*lines, *result.notes, *_outcome_of(result)]


def _table_of(leg: Leg) -> list[str]:
    where = "simulated" if leg.is_simulated else "played"
    head = f"{leg.name:<18}{'tokens/s':>16}{'goodput/s':>16}{f'{leg.latency} p95 ms':>24}{'of SLO':>8}"
    lines = [f"{leg.name}, {where}, in force: {leg.in_force}", head]
    for index, point in enumerate(leg.points):
        latency = point.latencies.get(leg.latency)
        use = "–" if point.slo_use is None else f"{100 * point.slo_use.mean:.0f} %"
        proposal = leg.proposal
        marks = [
            *(["knee"] if index == leg.knee else []),
            *(["best"] if proposal is not None and index == proposal.index else []),
            *([] if point.keeps_slo else ["SLO broken"]),
        ]
        shown = "–" if latency is None else f"{latency.mean:.1f} ± {latency.half_width:.1f}"
        throughput, goodput = point.output_tokens_per_second, point.goodput_per_second
        lines.append(
            f"{point.value!s:<18}{f'{throughput.mean:.1f} ± {throughput.half_width:.1f}':>16}"
            f"{f'{goodput.mean:.2f} ± {goodput.half_width:.2f}':>16}{shown:>24}{use:>8}  {', '.join(marks)}".rstrip()
        )
    reason = [] if leg.proposal is None else [leg.proposal.reason]
    return [*lines, f"ended: {leg.stopped_because or 'before its last point'}", *reason]


def _outcome_of(result: SweepResult) -> list[str]:
    if result.ended != "finished":
        return [result.says, "nothing is proposed"]
    proposed = [f"{name} {old} → {new}" for name, (old, new) in result.changes.items()]
    proposed += [f"{name} up to {value}" for name, value in result.load.items()]
    if proposed:
        return ["proposed: " + ", ".join(proposed)]
    stays = any(leg.proposal is not None and leg.proposal.index is not None for leg in result.legs)
    return ["proposed: no change" if stays else "nothing is proposed"]
