"""`manage.py loadtest`: measure what clients see."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from serving.config.pools import PoolSettings
from serving.lab.loadtest import Target, Workload, play


class Command(BaseCommand):
    """Plays a workload against a running server and prints throughput and latency percentiles."""

    help = "Load-test a running server: this one, or any that speaks the OpenAI API."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--url", default=f"http://{settings.HOST}:{settings.PORT}")
        parser.add_argument("--key", help="API key; the first start's, where this server wrote one")
        parser.add_argument("--pool", help="that is to serve; by default the server chooses")
        parser.add_argument("--model", help="by default the pool's, or that of the first")
        parser.add_argument("--requests", type=int, default=64)
        parser.add_argument("--concurrency", type=int, default=32, help="clients of a closed loop")
        parser.add_argument("--rate", type=float, help="Poisson arrivals a second instead of a closed loop")
        parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(32, 256), metavar=("LOW", "HIGH"))
        parser.add_argument("--output-tokens", type=int, default=128)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *args: Any, **options: Any) -> None:
        for name in ("requests", "concurrency", "output_tokens"):
            if options[name] < 1:
                raise CommandError(f"--{name.replace('_', '-')} must be at least 1, not {options[name]}")
        low, high = options["prompt_tokens"]
        if not 1 <= low <= high:
            raise CommandError(f"--prompt-tokens must be LOW HIGH with 1 ≤ LOW ≤ HIGH, not {low} {high}")
        if options["rate"] is not None and not options["rate"] > 0:
            raise CommandError(f"--rate must be above 0, not {options['rate']}")
        workload = Workload(
            num_requests=options["requests"],
            concurrency=options["concurrency"],
            rate=options["rate"],
            prompt_tokens=(low, high),
            output_tokens=options["output_tokens"],
            seed=options["seed"],
        )
        target = Target(
            url=options["url"].rstrip("/"),
            key=options["key"] or _own_key(),
            model=options["model"] or _model_of(options["pool"]),
            pool=options["pool"],
        )
        summary = asyncio.run(play(workload, target, progress=self._show(workload, quiet=options["json"])))
        self.stdout.write(json.dumps(summary) if options["json"] else _table(summary))
        if summary["num_failed"] == summary["num_requests"]:
            raise CommandError(f"every request failed; the first: {summary['first_error']}")

    def _show(self, workload: Workload, *, quiet: bool) -> Any:
        def show(num_ended: int) -> None:
            if not quiet and num_ended % max(1, workload.num_requests // 10) == 0:
                self.stderr.write(f"{num_ended} of {workload.num_requests} requests ended")

        return show


def _model_of(pool: str | None) -> str:
    pools: dict[str, PoolSettings] = settings.FOOTPLATE_POOLS
    return (pools.get(pool or "") or next(iter(pools.values()))).model.name


def _own_key() -> str:
    file = settings.FOOTPLATE_HOME / "first-run.json"
    try:
        return str(json.loads(file.read_text())["api_key"])
    except (OSError, ValueError, KeyError):
        raise CommandError(f"no --key given, and there is none in {file}; see FOOTPLATE_HOME") from None


def _table(summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['num_requests']} requests ({summary['num_failed']} failed) in {summary['wall_seconds']} s",
        f"output {summary['output_tokens_per_second']} tokens/s, "
        f"prompts {summary['prompt_tokens_per_second']} tokens/s",
    ]
    if summary["first_error"]:
        lines.append(f"first error: {summary['first_error']}")
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        if summary[name]:
            figures = "  ".join(f"{key} {value:>9.1f}" for key, value in summary[name].items())
            lines.append(f"{name:>8}  {figures}")
    return "\n".join(lines)
