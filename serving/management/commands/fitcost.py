"""`manage.py fitcost`: what an engine's steps cost, from its own records."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis import Redis

from serving.contracts.errors import DomainError
from serving.lab.costs.model import CostModel
from serving.lab.costs.services import fit_pool
from serving.management.pools import configured_pool
from serving.prepared import prepared_database


class Command(BaseCommand):
    """Fits a pool's cost model to the latest steps of its engines, keeps it, and says how far it is off."""

    help = "Fit what steps cost to a pool's own records: the simulator goes by it from then on."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Whose steps."""
        parser.add_argument("--pool", default=next(iter(settings.FOOTPLATE_POOLS)))
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Fit, keep, and print."""
        pool = configured_pool(options["pool"]).name
        try:
            with prepared_database(), Redis.from_url(settings.REDIS_URL, socket_timeout=5) as redis:
                cost, envelope = fit_pool(pool, redis=redis)
        except DomainError as error:
            raise CommandError(error.message) from None
        content = {"cost": msgspec.to_builtins(cost), "envelope": msgspec.to_builtins(envelope)}
        self.stdout.write(json.dumps(content) if options["json"] else _table(cost))


def _table(cost: CostModel) -> str:
    assert cost.fit is not None, "what was just fitted says how well"
    fit = cost.fit
    return "\n".join(
        [
            f"a step {cost.step_seconds * 1e3:.3f} ms, a sequence that decodes {cost.decoding_seconds * 1e6:.1f} us, "
            f"a thousand positions of its context {cost.context_token_seconds * 1e9:.1f} us",
            f"a token of prefill {cost.prefill_token_seconds * 1e6:.1f} us, a million of its positions "
            f"{cost.prefill_position_seconds * 1e9:.1f} ms; a request's way to the engine "
            f"{cost.request_seconds * 1e3:.1f} ms, {_seen(fit.num_ways)}",
            f"fitted to {fit.num_steps} steps; of {fit.num_held_back} others the duration of one is missed by "
            f"{fit.median_error:.1%} in the middle and {fit.p95_error:.1%} in one of twenty, that of all by "
            f"{fit.total_error:+.1%}",
            *(
                [f"near the default model's, as these steps tell little of it: {', '.join(fit.assumed)}"]
                if fit.assumed
                else []
            ),
        ]
    )


def _seen(num_ways: int) -> str:
    return f"by {num_ways} requests" if num_ways else "assumed, as no request tells of it"
