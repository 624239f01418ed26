"""`manage.py enginebench`: what the engine alone does on this machine."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from serving.contracts.tunables import Tunables
from serving.engine.bench import EngineFigures, EngineLoad, measure
from serving.engine.engine import Engine


class Command(BaseCommand):
    """Measures output tokens a second at given numbers of concurrent requests, or checks a device's arithmetic."""

    help = "Measure the engine alone, or check that a device computes what the reference computes (--check)."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32])
        parser.add_argument("--requests", type=int, help="requests a point; default: twice the concurrency")
        parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(32, 256), metavar=("LOW", "HIGH"))
        parser.add_argument("--output-tokens", type=int, default=128)
        parser.add_argument("--device", default=settings.FOOTPLATE_DEVICE, choices=("cpu", "cuda"))
        parser.add_argument("--dtype", default=settings.FOOTPLATE_DTYPE, choices=("bfloat16", "float32"))
        parser.add_argument(
            "--check", action="store_true", help="compare the device with fp32 on the CPU, measure nothing"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *args: Any, **options: Any) -> None:
        from serving.management.engine_runner import build_runner

        if options["check"]:
            self._check(options["device"])
            return
        runner = build_runner(device=options["device"], dtype=options["dtype"])
        low, high = options["prompt_tokens"]
        warm_up = EngineLoad(num_requests=2, concurrency=2, prompt_tokens=(32, 32), output_tokens=8, seed=0)
        measure(Engine(runner, tunables=Tunables()), warm_up)
        figures = []
        for concurrency in options["concurrency"]:
            load = EngineLoad(
                num_requests=options["requests"] or 2 * concurrency,
                concurrency=concurrency,
                prompt_tokens=(low, high),
                output_tokens=options["output_tokens"],
                seed=concurrency,
            )
            tunables = Tunables().changed({"max_running": concurrency})
            figures.append(measure(Engine(runner, tunables=tunables), load))
            if not options["json"]:
                self.stdout.write(_line(figures[-1]))
        if options["json"]:
            self.stdout.write(json.dumps({"points": [dataclasses.asdict(figure) for figure in figures]}))

    def _check(self, device: str) -> None:
        from serving.engine.models.problem import ModelFolderProblem
        from serving.engine.selfcheck import check_device

        try:
            checks = check_device(device, settings.FOOTPLATE_MODEL)
        except (ModelFolderProblem, ValueError) as problem:
            raise CommandError(str(problem)) from None
        for check in checks:
            self.stdout.write(f"{'agrees ' if check.passed else 'DIFFERS'}  {check.name}: {check.detail}")
        if not all(check.passed for check in checks):
            raise CommandError(f"{device} does not compute what the reference computes")


def _line(figures: EngineFigures) -> str:
    return (
        f"{figures.concurrency:>4} at once: {figures.output_tokens_per_second:>8.1f} output tokens/s, "
        f"TTFT p50 {figures.ttft_ms_p50:.0f} ms, step p50 {figures.step_ms_p50:.1f} ms"
    )
