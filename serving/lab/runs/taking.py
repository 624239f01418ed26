"""Who may play on a pool: one run or experiment at a time, whichever process asks for it. Against other servers, too,
one plays at a time: load testers that share a process disturb what each other measures. Blocking.

Whoever begins something on a pool does so while it holds the pool's row: nobody else can have begun between looking and
beginning. In SQLite, where rows have no locks, every transaction that may write is alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.db import transaction
from django.utils import timezone

from serving.contracts.errors import InvalidValue
from serving.lab.models import Experiment, Run, State
from serving.tuning.models import Pool

_BOTH = (Run, Experiment)


def take_next() -> Run | Experiment | None:
    """Take the oldest that waits and whose pool nothing else plays on (those against other servers count as one pool);
    None where there is none. Whoever takes one has it alone, and its pool."""
    busy = {
        pool for model in _BOTH for pool in model.objects.filter(state=State.RUNNING).values_list("pool", flat=True)
    }
    waiting: list[Run | Experiment] = [
        *Run.objects.filter(state=State.WAITING, experiment=None),
        *Experiment.objects.filter(state=State.WAITING),
    ]
    for row in sorted(waiting, key=lambda row: (row.created_at, row.pk)):
        if row.pool not in busy and _take(row):
            return row
    return None


@contextlib.contextmanager
def free_pool(name: str) -> Iterator[None]:
    """A transaction in which something may begin on a pool. Raises `InvalidValue` where something plays on it."""
    with transaction.atomic():
        _hold(name)
        if (other := _who_plays(name)) is not None:
            raise InvalidValue("pool", name, f"one on which nothing else of the Lab works, and {other} does")
        yield


def _take(row: Run | Experiment) -> bool:
    now = timezone.now()
    with transaction.atomic():
        _hold(row.pool)
        if _who_plays(row.pool) is not None:
            return False
        waits = type(row).objects.filter(pk=row.pk, state=State.WAITING)
        if not waits.update(state=State.RUNNING, started_at=now, beaten_at=now):
            return False
    row.refresh_from_db()
    return True


def _hold(pool: str) -> None:
    """Until the transaction ends. What waited for it sees what whoever held it before has begun."""
    if pool:
        Pool.objects.select_for_update().filter(name=pool).first()
    else:  # Other servers have no row, but what waits for them has.
        list(Run.objects.select_for_update().filter(pool="", state=State.WAITING).order_by("pk"))


def _who_plays(pool: str) -> Run | Experiment | None:
    """An experiment's own runs are in nobody's way: the experiment is."""
    experiment = Experiment.objects.filter(pool=pool, state=State.RUNNING).first()
    return experiment or Run.objects.filter(pool=pool, state=State.RUNNING, experiment=None).first()
