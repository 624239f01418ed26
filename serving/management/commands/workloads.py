"""`manage.py workloads list|show|import|export|delete|measure`: the Lab's workloads."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from redis import Redis

from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import DomainError
from serving.lab.fingerprints import Fingerprint, glimpse_fingerprint
from serving.lab.workloads import store
from serving.lab.workloads.codec import LARGEST_BYTES, decode_workload, workload_to_dict, workload_to_json
from serving.lab.workloads.measuring import ARRIVALS_AS, Measured, measure_workload
from serving.lab.workloads.words import amount_in_words, arrivals_in_words, class_in_words
from serving.lab.workloads.workload import Workload
from serving.prepared import prepared_database


class Command(BaseCommand):
    """Lists, shows, measures and stores workloads."""

    help = "List, show, import, export, delete or measure workloads."

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command a task."""
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="what is saved, and what is there from the start")
        show = actions.add_parser("show", help="one in words")
        importing = actions.add_parser("import", help="save a workload from a JSON file")
        exporting = actions.add_parser("export", help="write a workload as JSON")
        deleting = actions.add_parser("delete", help="delete a saved workload")
        measuring = actions.add_parser("measure", help="save what the request log shows of a time range")
        for naming in (show, exporting, deleting):
            naming.add_argument("name")
        importing.add_argument("file", type=Path, help="'-' reads what is piped in")
        importing.add_argument("--name", help="another name than the file has")
        exporting.add_argument("--file", type=Path, help="where to (the terminal)")
        measuring.add_argument("--pool", default=next(iter(settings.FOOTPLATE_POOLS)))
        measuring.add_argument("--tenant", default="", help="of this tenant alone")
        measuring.add_argument("--since", required=True, help="an ISO time, UTC where it names no zone")
        measuring.add_argument("--until", help="an ISO time (now)")
        measuring.add_argument("--name", required=True)
        measuring.add_argument("--arrivals", choices=ARRIVALS_AS, default="fitted", help="what becomes of the moments")
        for changing in (importing, deleting, measuring):
            changing.add_argument("--reason", default="", help="why")
        for told in (listing, show, measuring):
            told.add_argument("--json", action="store_true", help="as JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the sub-command."""
        actions: dict[str, Callable[[dict[str, Any]], None]] = {
            "list": self._list,
            "show": self._show,
            "import": self._import,
            "export": self._export,
            "delete": self._delete,
            "measure": self._measure,
        }
        try:
            with prepared_database():
                actions[options["action"]](options)
        except DomainError as error:
            raise CommandError(error.message) from None

    def _list(self, options: dict[str, Any]) -> None:
        known = [*store.saved_workloads(), *store.ready_workloads()]
        if options["json"]:
            rows = [{"origin": each.origin, "workload": workload_to_dict(each.workload)} for each in known]
            self.stdout.write(msgspec.json.encode(rows).decode())
            return
        for each in known:
            self.stdout.write(f"{each.workload.name:<24} {each.origin:<9} {arrivals_in_words(each.workload.arrivals)}")

    def _show(self, options: dict[str, Any]) -> None:
        known = store.find_known(options["name"])
        if options["json"]:
            self.stdout.write(workload_to_json(known.workload).decode())
            return
        self._tell(known.workload)
        for note in () if known.evidence is None else known.evidence.notes:
            self.stdout.write(f"mind: {note}")

    def _tell(self, workload: Workload) -> None:
        self.stdout.write(f"{workload.name}: {workload.about}".rstrip(": "))
        self.stdout.write(f"{'arrivals':<12} {arrivals_in_words(workload.arrivals)}")
        self.stdout.write(f"{'amount':<12} {amount_in_words(workload)}; seed {workload.seed}")
        for each in workload.classes:
            self.stdout.write(f"{each.name:<12} weight {each.share:g}: {class_in_words(each)}")
        if workload.source:
            self.stdout.write(f"{'source':<12} {workload.source}")

    def _import(self, options: dict[str, Any]) -> None:
        workload = decode_workload(_content_of(options["file"]))
        if options["name"]:
            workload = msgspec.structs.replace(workload, name=options["name"])
        store.save_workload(workload, author=COMMAND_LINE, origin="imported", reason=options["reason"])
        self.stdout.write(f"workload {workload.name} is saved")

    def _export(self, options: dict[str, Any]) -> None:
        content = workload_to_json(store.find_workload(options["name"]))
        if options["file"] is None:
            self.stdout.write(content.decode())
            return
        try:
            options["file"].write_bytes(content + b"\n")
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from None

    def _delete(self, options: dict[str, Any]) -> None:
        store.delete_workload(options["name"], author=COMMAND_LINE, reason=options["reason"])
        self.stdout.write(f"workload {options['name']} is deleted")

    def _measure(self, options: dict[str, Any]) -> None:
        measured = measure_workload(
            pool=options["pool"],
            tenant=options["tenant"],
            since=_moment("--since", options["since"]),
            until=timezone.now() if options["until"] is None else _moment("--until", options["until"]),
            name=options["name"],
            arrivals_as=options["arrivals"],
            fingerprint=_glimpse(options["pool"]),
        )
        store.save_workload(
            measured.workload,
            author=COMMAND_LINE,
            origin="measured",
            evidence=measured.evidence,
            reason=options["reason"],
        )
        if options["json"]:
            self.stdout.write(msgspec.json.encode(measured).decode())
            return
        self._tell(measured.workload)
        self._tell_fits(measured)

    def _tell_fits(self, measured: Measured) -> None:
        for name, found in measured.evidence.classes.items():
            for what, fit in (("prompts", found.prompt), ("answers", found.output)):
                if fit is None:
                    continue
                distance = "none" if fit.lognormal_distance is None else f"{fit.lognormal_distance:.3f}"
                self.stdout.write(
                    f"{name} {what}: {fit.num_measured:,} measured; distance (KS) of the histogram "
                    f"{fit.histogram_distance:.3f}, of the lognormal {distance}; taken: {fit.chosen}"
                )
        for note in measured.evidence.notes:
            self.stdout.write(f"mind: {note}")


def _content_of(path: Path) -> bytes:
    """At most one byte more than a workload may have."""
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(LARGEST_BYTES + 1)
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None


def _moment(option: str, text: str) -> datetime.datetime:
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(f"{option} must be an ISO time such as 2026-03-31T12:00, not {text[:80]!r}")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _glimpse(pool: str) -> Fingerprint:
    with Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5) as redis:
        return glimpse_fingerprint(redis, pool)
