"""`manage.py simulate`: what a workload would meet, in seconds instead of hours."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError, CommandParser

from serving.contracts.errors import DomainError
from serving.lab.simulator.simulation import Simulation, simulate
from serving.lab.workloads.fitting_context import clippings, fitted_to
from serving.management.lab_terms import add_workload_arguments, costs_of, quotas_finder, tunables_of, workload_of


class Command(BaseCommand):
    """Plays a workload through the real scheduler in virtual time and prints what clients would have seen."""

    help = "Simulate a workload under given tunables: the real scheduler, a virtual clock, fitted costs."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """What is simulated, on what."""
        add_workload_arguments(parser)
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="a tunable, on top of the pool's values"
        )
        parser.add_argument("--pool", help="whose tunables, costs and room: the first by default")
        parser.add_argument(
            "--defaults", action="store_true", help="default tunables, costs and room; asks no database"
        )
        parser.add_argument("--engines", type=int, default=1, help="among which arrivals are split beforehand")
        parser.add_argument("--processes", type=int, help="that share the engines; by default one a processor")
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Simulate, then print."""
        try:
            workload = workload_of(options)
            tunables = tunables_of(options)
            cost, envelope = costs_of(options)
            cuts = clippings(workload, max_context_tokens=envelope.max_model_len)
            workload = fitted_to(workload, max_context_tokens=envelope.max_model_len)
            result = simulate(
                workload,
                tunables=tunables,
                envelope=envelope,
                cost=cost,
                num_engines=options["engines"],
                num_processes=options["processes"],
                quotas=quotas_finder(options)(workload),
            )
        except DomainError as error:
            raise CommandError(error.message) from None
        if options["json"]:
            content = msgspec.to_builtins(result) | {
                "cost_source": cost.source,
                "cost": msgspec.to_builtins(cost),
                "cut": cuts,
            }
            self.stdout.write(json.dumps(content))
        else:
            self.stdout.write("\n".join([_table(result), *(f"note: {cut}" for cut in cuts)]))


def _table(result: Simulation) -> str:
    summary, total = result.summary, result.summary.total
    speed = result.simulated_seconds / max(1e-9, result.wall_seconds)
    lines = [
        f"{summary.workload}: {result.simulated_seconds:.0f} s simulated in {result.wall_seconds:.2f} s "
        f"({speed:,.0f} x), {result.num_engines} engines, {result.num_steps} steps",
        f"{total.num_requests} requests: {total.num_finished} finished, {total.num_refused} refused, "
        f"{total.num_failed} failed, {total.num_cancelled} cancelled",
        f"{total.output_tokens_per_second:.1f} output tokens/s, {total.prompt_tokens_per_second:.1f} prompt tokens/s, "
        f"{total.requests_per_second:.2f} requests/s, goodput {total.goodput_per_second:.2f}/s",
    ]
    for name in ("queue_ms", "ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        found = getattr(total, name)
        if found is not None:
            figures = "  ".join(
                f"{key} {getattr(found, key):>10.1f}" for key in ("mean", "p50", "p90", "p95", "p99", "max")
            )
            lines.append(f"{name:>8}  {figures}")
    lines += [f"note: {note}" for note in summary.notes]
    return "\n".join(lines)
