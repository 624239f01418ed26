"""`manage.py loadtest`: measure what clients see."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from serving.config.pools import PoolSettings
from serving.contracts.errors import DomainError, InvalidValue
from serving.lab.playing.player import Played, Player, Progress
from serving.lab.playing.target import Target
from serving.lab.recording import Recorder
from serving.lab.reports.report import Report, counts_in_words, figures_rows, rates_of, report_html, report_json
from serving.lab.reports.tables import moments_csv, requests_csv
from serving.lab.summaries import RunSummary
from serving.lab.workloads.arrivals import ClosedLoop, Poisson
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.distributions import Fixed, Uniform
from serving.lab.workloads.workload import RequestClass, Workload
from serving.management.lab_terms import workload_of

_RESUME = (
    "a run cannot be resumed: its arrivals and the server's state at that moment are gone, and what was measured "
    "before would be mixed with what is another run; play it again, with the same seed"
)


class Command(BaseCommand):
    """Plays a workload against a running server and prints throughput and latency percentiles."""

    help = "Load-test a running server: this one, or any that speaks the OpenAI API. Arrivals never wait for answers."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """What is played, against whom, and what is kept of it."""
        parser.add_argument("--workload", metavar="NAME|FILE", help="a saved or ready one, or a JSON file")
        parser.add_argument("--duration", type=float, metavar="SECONDS", help="in place of the workload's")
        parser.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="times as much traffic")
        parser.add_argument("--seed", type=int, help="in place of the workload's")
        parser.add_argument("--url", default=f"http://{settings.HOST}:{settings.PORT}")
        parser.add_argument("--key", help="API key; the first start's, where this server wrote one")
        parser.add_argument(
            "--key-of", action="append", default=[], metavar="TENANT=KEY", help="with which a class's tenant sends"
        )
        parser.add_argument("--pool", help="that is to serve; by default the server chooses")
        parser.add_argument("--model", help="by default the pool's, or that of the first")
        parser.add_argument(
            "--prompts",
            choices=("tokens", "text", "chat"),
            default="tokens",
            help="text or chat: for servers that take no token ids, or no ignore_eos",
        )
        parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="of a request")
        parser.add_argument("--json", action="store_true", help="the report as one JSON object on one line")
        parser.add_argument("--report", type=Path, metavar="FILE.html", help="the report as one page")
        parser.add_argument("--csv", type=Path, metavar="FILE.csv", help="a line a request")
        parser.add_argument("--course", type=Path, metavar="FILE.csv", help="a line a stretch of time")
        parser.add_argument("--resume", metavar="RUN", help="is refused: see why")
        quick = parser.add_argument_group("a workload in a few words, in place of --workload")
        quick.add_argument("--requests", type=int, help="how many; 64 by default")
        quick.add_argument("--concurrency", type=int, default=32, help="clients of a closed loop")
        quick.add_argument("--rate", type=float, help="Poisson arrivals a second instead of a closed loop")
        quick.add_argument("--prompt-tokens", type=int, nargs=2, default=(32, 256), metavar=("LOW", "HIGH"))
        quick.add_argument("--output-tokens", type=int, default=128)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Play, then print and write."""
        if options["resume"]:
            raise CommandError(_RESUME)
        try:
            workload = workload_of(options) if options["workload"] else _quick_workload(options)
            target = _target(options)
            target.check()
        except DomainError as error:
            raise CommandError(error.message) from None
        recorder = Recorder(workload)
        played = asyncio.run(_play(workload, target, recorder, tell=self._teller(quiet=options["json"])))
        summary = recorder.summary(wall_seconds=played.wall_seconds, notes=played.notes)
        context = {"Server": target.url, "Model": target.model, "Pool": target.pool or "the server's choice"}
        report = Report(title=f"Load test: {workload.name}", workload=workload, summary=summary, context=context)
        self._write(options, report, recorder)
        self.stdout.write(json.dumps(json.loads(report_json(report))) if options["json"] else _table(report))
        if summary.total.num_requests and summary.total.num_failed == summary.total.num_requests:
            raise CommandError(f"every request failed; the first: {summary.first_failure}")
        if not played.is_whole:
            raise CommandError("stopped before its end: the figures are of what had ended by then")

    def _teller(self, *, quiet: bool) -> Any:
        is_terminal = sys.stderr.isatty()
        last = 0.0

        def tell(progress: Progress) -> None:
            nonlocal last
            words = f"{progress.seconds:.0f} s: {progress.num_due} due, {progress.num_ended} ended"
            if is_terminal:
                self.stderr.write(f"\r{words}  ", ending="")
            elif progress.seconds - last >= 10:
                last = progress.seconds
                self.stderr.write(words)

        return (lambda _progress: None) if quiet else tell

    def _write(self, options: dict[str, Any], report: Report, recorder: Recorder) -> None:
        files: tuple[tuple[Path | None, Callable[[], str]], ...] = (
            (options["report"], lambda: report_html(report, chart_library=_chart_library())),
            (options["csv"], lambda: requests_csv(recorder.outcomes)),
            (options["course"], lambda: moments_csv(report.summary.moments)),
        )
        for file, content in files:
            if file is None:
                continue
            try:
                file.write_text(content(), encoding="utf-8")
            except OSError as error:
                raise CommandError(f"{file} cannot be written: {error.strerror}") from None


async def _play(workload: Workload, target: Target, recorder: Recorder, *, tell: Any) -> Played:
    player = Player(workload, target, recorder=recorder, tell=tell)
    # A first Ctrl-C ends the run, and what was measured is shown.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, player.stop)
    return await player.play()


def _quick_workload(options: dict[str, Any]) -> Workload:
    low, high = options["prompt_tokens"]
    rate, duration = options["rate"], options["duration"]
    count = options["requests"] or (None if duration else 64)
    workload = Workload(
        name="quick",
        arrivals=ClosedLoop(options["concurrency"]) if rate is None else Poisson(rate),
        classes=(
            RequestClass(name="all", prompt_tokens=Uniform(low, high), output_tokens=Fixed(options["output_tokens"])),
        ),
        num_requests=count,
        duration_seconds=duration,
        seed=1 if options["seed"] is None else options["seed"],
    )
    check_workload(workload)
    return workload


def _target(options: dict[str, Any]) -> Target:
    keys = {}
    for text in options["key_of"]:
        tenant, sign, key = text.partition("=")
        if not sign:
            raise InvalidValue("key-of", tenant[:40], "of the form TENANT=KEY")
        keys[tenant] = key
    prompts = options["prompts"]
    return Target(
        url=options["url"].rstrip("/"),
        key=options["key"] or _own_key(),
        keys=keys,
        model=options["model"] or _model_of(options["pool"]),
        pool=options["pool"] or "",
        prompts=prompts,
        ignore_eos=prompts == "tokens",
        timeout_seconds=options["timeout"],
    )


def _model_of(pool: str | None) -> str:
    pools: dict[str, PoolSettings] = settings.FOOTPLATE_POOLS
    return (pools.get(pool or "") or next(iter(pools.values()))).model.name


def _own_key() -> str:
    file = settings.FOOTPLATE_HOME / "first-run.json"
    try:
        return str(json.loads(file.read_text())["api_key"])
    except (OSError, ValueError, KeyError):
        raise CommandError(f"no --key given, and there is none in {file}; see FOOTPLATE_HOME") from None


def _chart_library() -> Path:
    return Path(settings.BASE_DIR) / "static" / "vendor" / "chart.umd.js"


def _table(report: Report) -> str:
    summary: RunSummary = report.summary
    total = summary.total
    lines = [f"{report.title}: {counts_in_words(total)}, measured over {summary.measured_seconds:.1f} s"]
    lines.append(", ".join(f"{name} {value}" for name, value in rates_of(total)))
    if total.slo_met_ratio is not None:
        lines.append(f"within the SLO: {total.slo_met_ratio:.1%}")
    lines.append(f"{'ms':>12}  " + "  ".join(f"{name:>10}" for name in ("mean", "p50", "p90", "p95", "p99", "max")))
    lines += [f"{name:>12}  " + "  ".join(f"{cell:>10}" for cell in cells) for name, cells in figures_rows(total)]
    for what, codes in (("refused", summary.refused_by_code), ("failed", summary.failed_by_code)):
        lines += [f"{what}: {count} x {code}" for code, count in codes.items()]
    if summary.first_failure:
        lines.append(f"first failure: {summary.first_failure}")
    return "\n".join([*lines, *(f"note: {note}" for note in summary.notes)])
