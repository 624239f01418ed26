"""What if? Ordering a prediction. Blocking.

What is ordered waits in the database; the Lab's process is told.
"""

from __future__ import annotations

import datetime
import functools
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from kombu.exceptions import OperationalError
from redis import Redis

from serving.audit.services import record
from serving.contracts.actors import Author, name_of
from serving.contracts.errors import InvalidValue, NothingChanges, Unavailable
from serving.contracts.ids import PoolName
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.services import envelope_of
from serving.lab.costs.store import latest_cost, newest_fit
from serving.lab.fingerprints import Fingerprint, decode_fingerprint, differences, glimpse_fingerprint
from serving.lab.models import Prediction, Run, State
from serving.lab.predictions.results import Basis
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.measuring import measure_workload
from serving.lab.workloads.ready import READY
from serving.lab.workloads.workload import Workload
from serving.telemetry.request_shapes import count_shapes
from serving.tuning.living import living_engines
from serving.tuning.selectors import current_tunables, find_configured_pool

logger = logging.getLogger(__name__)

LAST_HOUR: Final = "last-hour"
"""The name of a workload that was measured for a prediction."""
MEASURED_OVER: Final = datetime.timedelta(hours=1)
PLAYED: Final = "The Lab played runs on this pool in the last hour: their requests are a part of the traffic."
LEAST_REQUESTS: Final = 30
"""Fewer in the last hour, and their distributions say little."""
MOST_WAITING: Final = 20
OPEN: Final = (State.WAITING, State.RUNNING)


def order_prediction(
    pool: str, *, proposed: Mapping[str, Any], workload: Workload | None, author: Author, redis: Redis
) -> int:
    """Let it be computed what `proposed` (tunables by name, on top of the values in force) would do to a workload; to
    the traffic of the last hour where none is given. Gives the prediction's number.

    Raises `PoolNotFound`, `PoolNotConfigured`, `NothingChanges`, and `UnknownField` and `InvalidValue`, naming field,
    value and bound: also where the log has too few requests of the last hour, or too many predictions wait.
    """
    find_configured_pool(pool)
    current = current_tunables(pool).tunables
    wanted = current.changed(proposed)
    changes = wanted.differences(current)
    if not changes:
        raise NothingChanges("nothing would change: these values are in force", param="proposed")
    fingerprint = glimpse_fingerprint(redis, pool)
    found = _measured(pool, fingerprint) if workload is None else workload
    check_workload(found)
    basis = _basis(pool, fingerprint, redis=redis)
    if workload is None and _has_played_since(pool, timezone.now() - MEASURED_OVER):
        basis = msgspec.structs.replace(basis, notes=(*basis.notes, PLAYED))
    with transaction.atomic():
        if Prediction.objects.filter(state__in=OPEN).count() >= MOST_WAITING:
            raise InvalidValue("prediction", "one more", f"at most {MOST_WAITING} that wait: come back in a moment")
        row = Prediction.objects.create(
            pool=pool,
            workload=workload_to_dict(found),
            current=current.as_dict(),
            proposed=wanted.as_dict(),
            cost=msgspec.to_builtins(basis),
            fingerprint=msgspec.to_builtins(fingerprint),
            author=name_of(author),
        )
        record(
            "prediction ordered",
            actor=author,
            subject_kind="prediction",
            subject=str(row.pk),
            pool=pool,
            changes=changes,
            reason=f"with the workload {found.name}",
        )
        transaction.on_commit(functools.partial(wake, row.pk))
    return int(row.pk)


def wake(prediction_id: int) -> None:
    """Tell the Lab's process of a prediction that waits. Where it cannot be told, it is told again later."""
    from serving.lab.tasks import predict as task

    try:
        task.apply_async(args=(prediction_id,), expires=30)
    except (OperationalError, OSError) as error:
        logger.warning("the Lab's process cannot be told now, and will be told later: %s", error)


def _measured(pool: str, fingerprint: Fingerprint) -> Workload:
    until = timezone.now()
    since = until - MEASURED_OVER
    num_requests = count_shapes(pool=pool, since=since, until=until)
    if num_requests < LEAST_REQUESTS:
        raise InvalidValue(
            "workload",
            f"the traffic of the last hour, {num_requests} requests",
            f"one with at least {LEAST_REQUESTS} requests: choose a saved workload, or a ready one such as "
            f"{next(iter(READY))}",
        )
    return measure_workload(
        pool=pool, since=since, until=until, name=LAST_HOUR, arrivals_as="steps", fingerprint=fingerprint
    ).workload


def _has_played_since(pool: str, moment: datetime.datetime) -> bool:
    played = Run.objects.filter(pool=pool, started_at__isnull=False)
    return played.filter(Q(ended_at__isnull=True) | Q(ended_at__gte=moment)).exists()


def _basis(pool: str, now: Fingerprint, *, redis: Redis) -> Basis:
    """What is known of the pool's costs and room, and how far they are its own."""
    cost, envelope = latest_cost(pool)
    fitted_on = newest_fit(pool)
    notes = []
    if fitted_on is not None and (stale := differences(decode_fingerprint(fitted_on), now)):
        notes.append(f"The costs of steps were fitted before something changed: {', '.join(stale)}.")
    living = _room_now(pool, redis)
    if living is None:
        whose = "the default engine's" if fitted_on is None else "that of the last fit"
        notes.append(f"No engine was seen to live: the room for keys and values is {whose}.")
    return Basis(cost=cost, envelope=living or envelope, notes=tuple(notes))


def _room_now(pool: str, redis: Redis) -> Envelope | None:
    try:
        engines = living_engines(redis, PoolName(pool))
    except Unavailable:
        return None
    return envelope_of(engines) if engines else None
