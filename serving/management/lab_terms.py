"""What the Lab's commands have in common: how a workload is named, and on what it is played."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from serving.contracts.errors import InvalidValue
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.workloads.changing import changed
from serving.lab.workloads.codec import decode_workload
from serving.lab.workloads.ready import READY
from serving.lab.workloads.workload import Workload
from serving.management.pools import configured_pool
from serving.management.tunables_terms import read_assignment
from serving.prepared import prepared_database


def add_workload_arguments(parser: CommandParser) -> None:
    """How a workload is named, and changed for this one time."""
    parser.add_argument("--workload", required=True, metavar="NAME|FILE", help="a saved or ready one, or a JSON file")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="in place of the workload's")
    parser.add_argument("--requests", type=int, help="how many at most, in place of the workload's")
    parser.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="times as much traffic")
    parser.add_argument("--seed", type=int, help="in place of the workload's")


def workload_of(options: dict[str, Any]) -> Workload:
    """The workload that is named, as it is to be played. Raises `InvalidValue`."""
    return changed(
        find_workload(options["workload"]),
        duration_seconds=options["duration"],
        num_requests=options["requests"],
        rate_scale=options["rate_scale"],
        seed=options["seed"],
    )


def find_workload(name: str) -> Workload:
    """A saved workload, a ready one, or one in a file. Raises `InvalidValue` where there is none."""
    file = Path(name)
    if file.suffix == ".json" or "/" in name:
        try:
            return decode_workload(file.read_bytes())
        except OSError as error:
            raise InvalidValue("workload", name, f"a file that can be read ({error.strerror})") from None
    if name in READY:
        return READY[name]
    from serving.lab.workloads.store import find_workload as find_kept_workload

    with prepared_database():
        return find_kept_workload(name)


def tunables_of(options: dict[str, Any]) -> Tunables:
    """The pool's values, or the defaults, with those that `--set` names. Raises `InvalidValue` and `UnknownField`."""
    return _stored_tunables(options).changed(dict(map(read_assignment, options["set"])))


def costs_of(options: dict[str, Any]) -> tuple[CostModel, Envelope]:
    """What the pool's steps cost and its engine has room for, as last fitted; the default ones where nothing was."""
    if options["defaults"]:
        return DEFAULT_COST, DEFAULT_ENVELOPE
    from serving.lab.costs.store import latest_cost

    with prepared_database():
        return latest_cost(_pool_of(options))


def quotas_finder(options: dict[str, Any]) -> Callable[[Workload], Mapping[str, Quotas]]:
    """What says by which quotas a workload's tenants are held: by those in force, by none with `--defaults`."""

    def find(workload: Workload) -> Mapping[str, Quotas]:
        if options["defaults"]:
            return {}
        from serving.lab.runs.tenant_quotas import quotas_of_tenants

        with prepared_database():
            return quotas_of_tenants(workload)

    return find


def _stored_tunables(options: dict[str, Any]) -> Tunables:
    if options["defaults"]:
        return Tunables()
    from serving.tuning.selectors import current_tunables

    with prepared_database():
        return current_tunables(_pool_of(options)).tunables


def _pool_of(options: dict[str, Any]) -> str:
    return configured_pool(options["pool"] or next(iter(settings.FOOTPLATE_POOLS))).name
