"""What the commands of the Lab's experiments have in common: where one is played, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import CommandError
from redis import Redis

from serving.contracts.actors import COMMAND_LINE
from serving.lab.experiments.sweep_simulated import SimulatedBench
from serving.management.lab_terms import costs_of, quotas_finder, tunables_of
from serving.management.pools import configured_pool
from serving.prepared import prepared_database


def simulated_bench(options: dict[str, Any]) -> SimulatedBench:
    """The pool that is named, simulated. Raises `InvalidValue`."""
    cost, envelope = costs_of(options)
    quotas_of = quotas_finder(options)
    return SimulatedBench(options["pool"], tunables_of(options), cost=cost, envelope=envelope, quotas_of=quotas_of)


def play_on_pool(
    kind: str,
    plan: msgspec.Struct,
    options: dict[str, Any],
    *,
    title: str,
    values: str,
    say: Callable[[str], Any] = lambda _title: None,
) -> Mapping[str, Any]:
    """Play an experiment on the pool that is named; what came of it, as JSON holds it. `values` says of a pool which
    values it is played with, which no option changes. Raises `CommandError`, and `DomainError`."""
    from serving.lab.runs.foreground import play_in_foreground

    if options["set"] or options["defaults"]:
        raise CommandError(f"--set and --defaults are for --simulated: a pool is {values}")
    pool = configured_pool(options["pool"]).name
    with prepared_database(), Redis.from_url(settings.REDIS_URL) as redis:
        return play_in_foreground(
            kind,
            pool=pool,
            title=title,
            plan=msgspec.to_builtins(plan),
            author=COMMAND_LINE,
            redis=redis,
            say=say,
        )
