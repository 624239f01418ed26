"""`manage.py threeways`: static, windowed and continuous batching on the same requests, and what each costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from serving.contracts.errors import DomainError
from serving.lab.experiments.three_ways import play_three_ways
from serving.lab.experiments.three_ways_figures import MEASURES
from serving.lab.experiments.three_ways_plan import ThreeWaysPlan
from serving.lab.experiments.three_ways_results import ThreeWaysResult
from serving.management.lab_experiments import play_on_pool, simulated_bench
from serving.management.lab_terms import add_workload_arguments, workload_of


class Command(BaseCommand):
    """Plays a workload under the three ways of batching in turn, and prints their figures side by side."""

    help = "Compare static, windowed and continuous batching on the same workload, in place or simulated."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Which windows, how often, and where."""
        add_workload_arguments(parser)
        parser.add_argument("--pool", default=next(iter(settings.FOOTPLATE_POOLS)))
        parser.add_argument("--static-window", type=float, default=1000.0, metavar="MS", help="in which batches form")
        parser.add_argument("--window", type=float, default=250.0, metavar="MS", help="that joins wait for company")
        parser.add_argument("--repeats", type=int, default=3, help="of each way, each with another seed")
        parser.add_argument("--settle", type=float, default=5.0, metavar="SECONDS", help="after each change")
        parser.add_argument("--simulated", action="store_true", help="on the simulator: nothing is sent, or changed")
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="simulated: on top of the pool's values"
        )
        parser.add_argument("--defaults", action="store_true", help="simulated: default tunables, costs and room")
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Compare, then print."""
        try:
            plan = _plan_of(options)
            result = play_three_ways(plan, simulated_bench(options)) if options["simulated"] else _play(plan, options)
        except DomainError as error:
            raise CommandError(error.message) from None
        except KeyboardInterrupt:
            raise CommandError("interrupted", returncode=130) from None
        if options["json"]:
            self.stdout.write(json.dumps(msgspec.to_builtins(result)))
        else:
            self.stdout.write("\n".join(_lines_of(result)))


def _plan_of(options: dict[str, Any]) -> ThreeWaysPlan:
    plan = ThreeWaysPlan(
        workload=workload_of(options),
        static_window_ms=options["static_window"],
        window_ms=options["window"],
        repeats=options["repeats"],
        settle_seconds=options["settle"],
        way="simulated" if options["simulated"] else "played",
    )
    plan.check()
    return plan


def _play(plan: ThreeWaysPlan, options: dict[str, Any]) -> ThreeWaysResult:
    title = f"Three ways of batching with {plan.workload.name}"
    result = play_on_pool("three_ways", plan, options, title=title, values="played with the values in force")
    return msgspec.convert(result, type=ThreeWaysResult)


def _lines_of(result: ThreeWaysResult) -> Sequence[str]:
    lines = ["".join([f"{'':<24}", *(f"{way.name:>20}" for way in result.ways)])]
    for name, measure in MEASURES.items():
        cells = []
        for way in result.ways:
            figure = way.figures.get(name)
            cells.append("–" if figure is None else f"{_number(figure.mean)} ± {_number(figure.half_width)}")
        lines.append("".join([f"{f'{measure.title}, {measure.unit}':<24}", *(f"{cell:>20}" for cell in cells)]))
    for title, shares in (
        ("padding, of prompts", [way.padded_share for way in result.ways]),
        ("idle places", [way.idle_share for way in result.ways]),
    ):
        lines.append(
            "".join([f"{title:<24}", *(f"{'–' if share is None else f'{share:.1%}':>20}" for share in shares)])
        )
    lines.append("".join([f"{'refused':<24}", *(f"{way.num_refused:>20}" for way in result.ways)]))
    return [*lines, "", *result.conclusions, *result.notes]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
