"""`manage.py loadtest`: measure what clients see."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName
from serving.lab.playing.player import Played, Player, Progress
from serving.lab.recording import Recorder
from serving.lab.reports.report import Report, report_html
from serving.lab.reports.tables import moments_csv, requests_csv
from serving.lab.runs.gauges import PoolGauges
from serving.lab.runs.keeping import Kept, Setting, keep_run, read_setting
from serving.lab.workloads.workload import Workload
from serving.management.loadtest_output import Result, results_json, results_table
from serving.management.loadtest_terms import Terms, add_arguments, read_terms
from serving.prepared import prepared_database

Tell = Callable[[Progress], None]

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
        add_arguments(parser)
        parser.add_argument("--save", action="store_true", help="keep each run: the console shows and compares it")
        parser.add_argument("--json", action="store_true", help="the report as one JSON object on one line")
        parser.add_argument("--report", type=Path, metavar="FILE.html", help="the report as one page, a run")
        parser.add_argument("--csv", type=Path, metavar="FILE.csv", help="a line a request, a file a run")
        parser.add_argument("--course", type=Path, metavar="FILE.csv", help="a line a stretch of time, a file a run")
        parser.add_argument("--resume", metavar="RUN", help="is refused: see why")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Play, then print and write."""
        if options["resume"]:
            raise CommandError(_RESUME)
        try:
            terms = read_terms(options)
            setting = _read_setting(terms) if options["save"] else None
            results, is_whole = self._play_all(terms, setting, options)
        except DomainError as error:
            raise CommandError(error.message) from None
        self.stdout.write(results_json(results) if options["json"] else results_table(results))
        totals = [result.report.summary.total for result in results]
        if all(total.num_requests and total.num_failed == total.num_requests for total in totals):
            first = results[0].report.summary.first_failure
            raise CommandError(f"every request failed; the first: {first}")
        if not is_whole:
            raise CommandError("stopped before its end: the figures are of what had ended by then")

    def _play_all(self, terms: Terms, setting: Setting | None, options: dict[str, Any]) -> tuple[list[Result], bool]:
        """The runs that were played, and whether none was stopped: after one that was there is no other."""
        results: list[Result] = []
        for number in range(terms.repeats):
            workload = msgspec.structs.replace(terms.workload, seed=terms.workload.seed + number)
            recorder = Recorder(workload)
            started_at = timezone.now()
            played = asyncio.run(_play(terms, workload, recorder, tell=self._teller(quiet=options["json"])))
            summary = recorder.summary(wall_seconds=played.wall_seconds, notes=played.notes)
            report = Report(
                title=_title(workload, number, terms.repeats),
                workload=workload,
                summary=summary,
                context=_context(terms, workload),
            )
            result = Result(report=report, outcomes=recorder.outcomes)
            if setting is not None:
                kept = Kept(
                    outcomes=recorder.outcomes,
                    summary=summary,
                    is_whole=played.is_whole,
                    started_at=started_at,
                    ended_at=timezone.now(),
                )
                result = msgspec.structs.replace(result, run_id=_keep(terms, workload, setting, kept))
            _write(options, result, number=number + 1 if terms.repeats > 1 else None)
            results.append(result)
            if not played.is_whole:
                return results, False
        return results, True

    def _teller(self, *, quiet: bool) -> Tell:
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


async def _play(terms: Terms, workload: Workload, recorder: Recorder, *, tell: Tell) -> Played:
    async with contextlib.AsyncExitStack() as stack:
        gauges = None
        if terms.pools:
            # Where it does not answer, the run goes on without.
            redis = Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
            stack.push_async_callback(redis.aclose)
            gauges = PoolGauges(redis, *map(PoolName, terms.pools))
        player = Player(workload, terms.target, recorder=recorder, gauges=gauges, tell=tell)
        # A first Ctrl-C ends the run, and what was measured is shown.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, player.stop)
        return await player.play()


def _read_setting(terms: Terms) -> Setting:
    """What is kept with the runs; also whether there is anything to keep them in, before an hour is played."""
    with prepared_database():
        # Of several pools nobody knows which one serves.
        if len(terms.pools) != 1:
            return Setting()
        with BlockingRedis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5) as redis:
            return read_setting(terms.pools[0], redis=redis)


def _keep(terms: Terms, workload: Workload, setting: Setting, kept: Kept) -> int:
    title = f"{workload.name} on {setting.pool or terms.target.url}"
    with prepared_database():
        run = keep_run(workload, terms.target, setting=setting, kept=kept, title=title, author=COMMAND_LINE)
    return int(run.pk)


def _title(workload: Workload, number: int, repeats: int) -> str:
    return f"Load test: {workload.name}{f' ({number + 1} of {repeats})' if repeats > 1 else ''}"


def _context(terms: Terms, workload: Workload) -> dict[str, str]:
    pool = terms.target.pool or "the server's choice"
    return {"Server": terms.target.url, "Model": terms.target.model, "Pool": pool, "Seed": str(workload.seed)}


def _write(options: dict[str, Any], result: Result, *, number: int | None) -> None:
    """The files that were asked for; of one run in several with its number before the ending."""
    report = result.report
    files: Sequence[tuple[Path | None, Callable[[], str]]] = (
        (options["report"], lambda: report_html(report, chart_library=_chart_library())),
        (options["csv"], lambda: requests_csv(result.outcomes)),
        (options["course"], lambda: moments_csv(report.summary.moments)),
    )
    for asked, content in files:
        if asked is None:
            continue
        file = asked if number is None else asked.with_name(f"{asked.stem}-{number}{asked.suffix}")
        try:
            file.write_text(content(), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}") from None


def _chart_library() -> Path:
    return Path(settings.BASE_DIR) / "static" / "vendor" / "chart.umd.js"
