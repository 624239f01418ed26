"""`manage.py tunables show|set|preset|canary|promote|withdraw|history|table`: read, change, try and document a pool's
tunables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis import Redis

from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import DomainError, PoolNotConfigured
from serving.contracts.ids import PoolName
from serving.contracts.presets import PRESETS, preset_changes
from serving.contracts.tunables import describe
from serving.management.tunables_terms import (
    add_terms,
    canary_in_words,
    read_assignment,
    read_terms,
    terms_in_words,
)
from serving.prepared import prepared_database
from serving.tuning import canaries, selectors, services
from serving.tuning.canary_reading import read_canary
from serving.tuning.conflicts import conflicts_of
from serving.tuning.documentation import tunables_table
from serving.tuning.living import living_engines
from serving.tuning.models import TunablesVersion


class Command(BaseCommand):
    """Shows, changes and lists the versions of a pool's tunables."""

    help = "Show or change a pool's tunables, or list their versions."

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command a task."""
        actions = parser.add_subparsers(dest="action", required=True)
        show = actions.add_parser("show", help="the values in force")
        change = actions.add_parser("set", help="store new values and announce them")
        change.add_argument("changes", nargs="+", metavar="NAME=VALUE")
        change.add_argument("--reason", default="", help="why")
        preset = actions.add_parser("preset", help="store the values that serve one kind of work and announce them")
        preset.add_argument("name", choices=tuple(PRESETS), help=_presets_in_words())
        canary = actions.add_parser("canary", help="the version that one engine tries, and how it does there")
        promote = actions.add_parser("promote", help="take the version that is tried to all engines")
        withdraw = actions.add_parser("withdraw", help="take the version that is tried back")
        for changing in (change, preset):
            add_terms(changing)
        for ending in (promote, withdraw):
            ending.add_argument("--reason", default="", help="why")
        history = actions.add_parser("history", help="the versions, newest first")
        actions.add_parser("table", help="what there is to tune, as the README's table")
        for action in (show, change, preset, canary, promote, withdraw, history):
            action.add_argument("--pool", default=next(iter(settings.FOOTPLATE_POOLS)))

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the sub-command."""
        if options["action"] == "table":
            self.stdout.write(tunables_table())
            return
        try:
            actions = {
                "show": self._show,
                "set": self._set,
                "preset": self._set_preset,
                "canary": self._show_canary,
                "promote": self._promote,
                "withdraw": self._withdraw,
                "history": self._list,
            }
            with prepared_database():
                actions[options["action"]](options)
        except DomainError as error:
            raise CommandError(error.message) from None

    def _show(self, options: dict[str, Any]) -> None:
        current = selectors.current_tunables(options["pool"])
        self.stdout.write(f"pool {options['pool']}, version {current.version}")
        self._say_if_gone(options["pool"])
        values = current.tunables.as_dict()
        for spec in describe():
            value = _shown(values[spec.name])
            self.stdout.write(f"{spec.name:<20} {value:>12} {spec.unit:<10} {spec.help} ({spec.bounds})")

    def _set(self, options: dict[str, Any]) -> None:
        changes = dict(read_assignment(text) for text in options["changes"])
        self._store(options, changes, reason=options["reason"])

    def _set_preset(self, options: dict[str, Any]) -> None:
        name = options["name"]
        self._store(options, preset_changes(name), reason=f"preset {name}: {PRESETS[name].reason}")

    def _store(self, options: dict[str, Any], changes: dict[str, Any], *, reason: str) -> None:
        with Redis.from_url(settings.REDIS_URL) as redis:
            version = services.change(
                options["pool"], changes, reason=reason, author=COMMAND_LINE, redis=redis, **read_terms(options)
            )
        self.stdout.write(f"version {version.number} is stored: {_describe(version.changes)}")
        for line in terms_in_words(version):
            self.stdout.write(line)
        for conflict in conflicts_of(selectors.tunables_of(version.values)):
            self.stdout.write(f"mind: {conflict.message}")

    def _say_if_gone(self, name: str) -> None:
        """To whoever reads, who is told what whoever changes is refused with."""
        try:
            selectors.find_configured_pool(name)
        except PoolNotConfigured as error:
            self.stdout.write(f"mind: {error.message}")

    def _show_canary(self, options: dict[str, Any]) -> None:
        pool = selectors.find_pool(options["pool"])
        with Redis.from_url(settings.REDIS_URL) as redis:
            reading = read_canary(pool, living_engines(redis, PoolName(pool.name)), redis)
        for line in canary_in_words(reading):
            self.stdout.write(line)

    def _promote(self, options: dict[str, Any]) -> None:
        version = self._end_canary(options, canaries.take_to_all)
        self.stdout.write(f"version {version.number} runs on all engines")

    def _withdraw(self, options: dict[str, Any]) -> None:
        version = self._end_canary(options, canaries.take_back)
        self.stdout.write(f"version {version.number} is stored: {_describe(version.changes)}")

    def _end_canary(self, options: dict[str, Any], end: Callable[..., TunablesVersion]) -> TunablesVersion:
        canary = selectors.running_canary(selectors.find_pool(options["pool"]))
        if canary is None:
            raise CommandError(f"no version of pool {options['pool']} is being tried")
        with Redis.from_url(settings.REDIS_URL) as redis:
            return end(
                options["pool"], canary.version.number, reason=options["reason"], author=COMMAND_LINE, redis=redis
            )

    def _list(self, options: dict[str, Any]) -> None:
        self._say_if_gone(options["pool"])
        for version in selectors.versions(options["pool"]):
            when = version.created_at.isoformat(timespec="seconds")
            line = f"{version.number:>5}  {when}  {version.author}: {_describe(version.changes)}  {version.reason}"
            self.stdout.write(line.rstrip())


def _presets_in_words() -> str:
    return "; ".join(f"{name}: {preset.reason}" for name, preset in PRESETS.items())


def _describe(changes: dict[str, list[Any]]) -> str:
    changed = (f"{name} {_shown(old)} → {_shown(new)}" for name, (old, new) in changes.items())
    return ", ".join(changed) or "the defaults"


def _shown(value: Any) -> str:
    return str(value) or "(empty)"
