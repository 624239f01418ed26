"""`manage.py overload`: a multiple of a pool's capacity, and whether backpressure does what the policy says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from serving.contracts.errors import DomainError, InvalidValue
from serving.lab.experiments.overload import play_overload
from serving.lab.experiments.overload_plan import Criteria, OverloadPlan
from serving.lab.experiments.overload_results import OverloadResult
from serving.management.lab_experiments import play_on_pool, simulated_bench
from serving.management.lab_terms import add_workload_arguments, workload_of

FAILED = 1
"""What the command exits with where a criterion failed."""
_MARKS = {"passed": "passed", "failed": "FAILED", "not judged": "–"}


class Command(BaseCommand):
    """Overloads a pool, and prints the criteria with what was measured. Exits with 1 where one failed."""

    help = "Send a multiple of a pool's capacity, and check that it refuses, serves and recovers as its policy says."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """How much, for how long, and by which criteria."""
        add_workload_arguments(parser)
        parser.add_argument("--pool", default=next(iter(settings.FOOTPLATE_POOLS)))
        parser.add_argument(
            "--multiples", default="1,2", metavar="X[,X…]", help="of capacity, rising, one after another"
        )
        parser.add_argument("--stage", type=float, default=60.0, metavar="SECONDS", help="for each multiple")
        parser.add_argument("--measure", type=float, default=60.0, metavar="SECONDS", help="for each rate of capacity")
        for name, default in msgspec.structs.asdict(Criteria()).items():
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=float, default=default, help=f"criterion; {default:g} unless told")
        parser.add_argument("--simulated", action="store_true", help="on the simulator: nothing is sent")
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="simulated: on top of the pool's values"
        )
        parser.add_argument("--defaults", action="store_true", help="simulated: default tunables, costs and room")
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Overload, then print."""
        try:
            plan = _plan_of(options)
            result = play_overload(plan, simulated_bench(options)) if options["simulated"] else _play(plan, options)
        except DomainError as error:
            raise CommandError(error.message) from None
        except KeyboardInterrupt:
            raise CommandError("interrupted", returncode=130) from None
        if options["json"]:
            self.stdout.write(json.dumps(msgspec.to_builtins(result)))
        else:
            self.stdout.write("\n".join(_lines_of(result)))
        if not result.passed:
            raise SystemExit(FAILED)


def _plan_of(options: dict[str, Any]) -> OverloadPlan:
    try:
        multiples = tuple(float(each) for each in options["multiples"].split(","))
    except ValueError:
        raise InvalidValue("multiples", options["multiples"], "numbers with commas between them") from None
    plan = OverloadPlan(
        workload=workload_of(options),
        multiples=multiples,
        stage_seconds=options["stage"],
        capacity_seconds=options["measure"],
        criteria=Criteria(**{name: options[name] for name in Criteria.__struct_fields__}),
        way="simulated" if options["simulated"] else "played",
    )
    plan.check()
    return plan


def _play(plan: OverloadPlan, options: dict[str, Any]) -> OverloadResult:
    title = f"{plan.multiples[-1]:g} times capacity with {plan.workload.name}"
    result = play_on_pool("overload", plan, options, title=title, values="overloaded with the values in force")
    return msgspec.convert(result, type=OverloadResult)


def _lines_of(result: OverloadResult) -> Sequence[str]:
    capacity = result.capacity
    within = (
        "at none that was tried" if capacity.goodput_rate is None else f"up to {capacity.goodput_rate:.3g} requests/s"
    )
    lines = [
        f"capacity {capacity.saturation_per_second:.3g} requests/s; nine of ten in time {within}",
        f"{'times':>6}{'offered/s':>11}{'let in/s':>10}{'goodput/s':>11}{'refused':>9}{'failed':>8}{'TTFT p95 ms':>13}",
    ]
    for stage in result.stages:
        ttft = "–" if stage.ttft_p95_ms is None else f"{stage.ttft_p95_ms:,.0f}"
        lines.append(
            f"{stage.multiple:>6g}{stage.offered_per_second:>11.3g}{stage.accepted_per_second:>10.3g}"
            f"{stage.goodput_per_second:>11.3g}{stage.num_refused:>9}{stage.num_failed:>8}{ttft:>13}"
        )
    lines.append("")
    lines += [f"{_MARKS[each.judged]:<8}{each.title}: {each.measured} ({each.bound})" for each in result.verdicts]
    outcome = "passed" if result.passed else "failed"
    return [*lines, "", *result.advice, *result.notes, f"the pool {outcome}"]
