"""Keeping what was measured around a version, once it is over: what it is read from is pruned later. Blocking.

Each version's is stored once, in one row: whoever is killed before has stored nothing of it, and whoever does it again
changes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from redis import Redis

from serving.contracts.decoding import decode_or_none
from serving.telemetry.history_selectors import Measured, content_between, measured_of
from serving.telemetry.rollup_drain import drain_chronicle
from serving.telemetry.rollups import decode_content, encode_content
from serving.tuning.effects import LOOK, stretches_of
from serving.tuning.models import CanaryState, TunablesVersion, VersionEffect

SETTLED = datetime.timedelta(minutes=20)
"""So long after its end nothing is added to a stretch any more: a monitor that takes over sums up the last quarter of
an hour."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptEffect:
    """What was measured before and after a version; None where nothing was."""

    before: Measured | None
    after: Measured | None


def keep_effects(redis: Redis, *, now: datetime.datetime) -> int:
    """Store what was measured around every version of which all is known by now; gives of how many. Errors of Redis and
    database pass through, and leave the rest for the next time."""
    # What waits there is a part of it.
    drain_chronicle(redis)
    limit = now - LOOK - SETTLED
    due = TunablesVersion.objects.filter(effect=None, number__gt=1, created_at__lt=limit)
    # What one engine alone ran did nothing to the pool.
    due = due.exclude(canary__state__in=(CanaryState.RUNNING, CanaryState.WITHDRAWN))
    due = due.exclude(canary__ended_at__gte=limit)
    num_kept = 0
    for version in due.select_related("pool", "canary").order_by("pk"):
        _keep(version, now=now)
        num_kept += 1
    return num_kept


def kept_effects(versions: Iterable[TunablesVersion]) -> dict[int, KeptEffect]:
    """What is kept of these versions, by the number of each; they are of one pool."""
    numbers = {version.pk: version.number for version in versions}
    found = VersionEffect.objects.filter(version__in=list(numbers))
    return {
        numbers[effect.version_id]: KeptEffect(_measured(effect.before), _measured(effect.after)) for effect in found
    }


def _keep(version: TunablesVersion, *, now: datetime.datetime) -> None:
    neighbours = version.pool.versions.select_related("canary")
    by_number = {
        neighbour.number: neighbour
        for neighbour in neighbours.filter(number__in=(version.number - 1, version.number + 1))
    }
    stretches = stretches_of(
        version, older=by_number.get(version.number - 1), newer=by_number.get(version.number + 1), now=now
    )
    effect = VersionEffect(
        version=version,
        before=_encoded(version.pool.name, stretches.since, stretches.stored_at),
        after=_encoded(version.pool.name, stretches.at, stretches.until),
    )
    VersionEffect.objects.bulk_create([effect], ignore_conflicts=True)


def _encoded(pool: str, since: datetime.datetime, until: datetime.datetime) -> bytes | None:
    content = content_between(pool, since, until)
    return None if content is None else encode_content(content)


def _measured(raw: bytes | memoryview | None) -> Measured | None:
    content = None if raw is None else decode_or_none(decode_content, bytes(raw))
    return None if content is None else measured_of(content)
