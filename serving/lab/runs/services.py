"""Ordering and stopping what the Lab does. Blocking.

What is ordered waits in the database; the Lab's process is told.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError
from redis import Redis

from serving.admission.models import Tenant
from serving.audit.services import record
from serving.contracts.actors import Author, name_of
from serving.contracts.errors import InvalidValue
from serving.contracts.texts import is_storable
from serving.lab.experiments.kinds import KINDS
from serving.lab.models import Experiment, Run, State
from serving.lab.playing.target import Prompts, Target
from serving.lab.runs.allowing import check_foreign
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.workload import Workload
from serving.tuning.selectors import find_configured_pool

logger = logging.getLogger(__name__)

LONGEST_TITLE = 200
MOST_REPEATS = 20
LONGEST_RUN_SECONDS = 4 * 3600.0
MOST_WAITING = 100
KEY_SECONDS = 24 * 3600
"""How long a foreign server's key is kept that a run waits to be played with."""


def order_run(
    workload: Workload,
    *,
    author: Author,
    pool: str = "",
    foreign: Target | None = None,
    title: str = "",
    repeats: int = 1,
    reason: str = "",
) -> list[Run]:
    """Let a workload be played against one of this server's pools, or against a foreign server, `repeats` times one
    after another with seeds that follow each other. `reason` goes into the audit.

    Raises `PoolNotFound` and `PoolNotConfigured`, and `InvalidValue`, naming field, value and bound, for what cannot be
    played, takes too long, or is not allowed.
    """
    _check(workload, title=title)
    if not 1 <= repeats <= MOST_REPEATS:
        raise InvalidValue("repeats", repeats, f"a number from 1 to {MOST_REPEATS}")
    target = _own_target(pool) if foreign is None else foreign
    if foreign is None:
        _check_tenants(workload)
    else:
        check_foreign(foreign, allowed_hosts=settings.FOOTPLATE_LOADTEST_HOSTS)
    with transaction.atomic():
        _check_room()
        runs = [
            Run.objects.create(
                title=title or f"{workload.name} on {pool or target.url}"[:LONGEST_TITLE],
                workload=workload_to_dict(_with_seed(workload, workload.seed + number)),
                target=_without_keys(target),
                pool=pool if foreign is None else "",
                author=name_of(author),
            )
            for number in range(repeats)
        ]
        if target.key:
            transaction.on_commit(lambda: _keep_key([run.pk for run in runs], target.key))
        record(
            "run ordered",
            actor=author,
            subject_kind="run",
            subject=", ".join(str(run.pk) for run in runs),
            pool=pool,
            changes={"workload": [None, workload.name], "url": [None, target.url], "repeats": [None, repeats]},
            reason=reason,
        )
        transaction.on_commit(wake)
    return runs


def order_experiment(kind: str, *, pool: str, title: str, plan: Mapping[str, Any], author: Author) -> Experiment:
    """Let an experiment of this kind be played on a pool. Its plan was checked by its kind.

    Raises `PoolNotFound`, `PoolNotConfigured`, and `InvalidValue` for a kind that there is not, or where too many wait.
    """
    if kind not in KINDS:
        raise InvalidValue("kind", kind, "one of " + ", ".join(KINDS))
    find_configured_pool(pool)
    with transaction.atomic():
        _check_room()
        experiment = Experiment.objects.create(
            kind=kind, pool=pool, title=title[:LONGEST_TITLE], plan=dict(plan), author=name_of(author)
        )
        subject = f"{kind} {experiment.pk}"
        record("experiment ordered", actor=author, subject_kind="experiment", subject=subject, pool=pool, reason=title)
        transaction.on_commit(wake)
    return experiment


def stop_run(run_id: int, *, author: Author) -> None:
    """Ask a run to end, whether it plays or waits. Raises `InvalidValue` where it is over, or was never."""
    with transaction.atomic():
        run = Run.objects.select_for_update().filter(pk=run_id).first()
        if run is None or run.state not in (State.WAITING, State.RUNNING):
            raise InvalidValue("run", run_id, "one that plays or waits")
        _ask_to_stop(run)
        record("run stopped", actor=author, subject_kind="run", subject=str(run_id), pool=run.pool)


def stop_experiment(experiment_id: int, *, author: Author) -> None:
    """Ask an experiment to end, whether it plays or waits. Raises as `stop_run`."""
    with transaction.atomic():
        experiment = Experiment.objects.select_for_update().filter(pk=experiment_id).first()
        if experiment is None or experiment.state not in (State.WAITING, State.RUNNING):
            raise InvalidValue("experiment", experiment_id, "one that plays or waits")
        _ask_to_stop(experiment)
        subject = f"{experiment.kind} {experiment_id}"
        record("experiment stopped", actor=author, subject_kind="experiment", subject=subject, pool=experiment.pool)


def wake() -> None:
    """Tell the Lab's process that there is something to play. It looks by itself, too, so that nothing is lost."""
    from serving.lab.tasks import work_off

    try:
        work_off.apply_async(expires=5)
    except (OperationalError, OSError) as error:
        logger.warning("the Lab's process cannot be told now, and will look by itself: %s", error)


def take_key(run_id: int, *, redis: Redis) -> str:
    """The key for a run's foreign server, which is forgotten with this; empty where there is none."""
    stored = redis.getdel(_key_place(run_id))
    return stored.decode() if isinstance(stored, bytes) else ""


def own_url() -> str:
    """Where this server is reached from the same machine, or where the settings say."""
    if settings.FOOTPLATE_LAB_URL:
        return str(settings.FOOTPLATE_LAB_URL)
    host = "127.0.0.1" if settings.HOST in ("0.0.0.0", "::", "") else settings.HOST  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.PORT}"


def _own_target(pool: str, *, prompts: Prompts = "tokens") -> Target:
    found = find_configured_pool(pool)
    return Target(url=own_url(), model=found.model, pool=found.name, prompts=prompts)


def _check(workload: Workload, *, title: str) -> None:
    check_workload(workload)
    if not is_storable(title, longest=LONGEST_TITLE):
        raise InvalidValue(
            "title", title[:80], f"a text of at most {LONGEST_TITLE} characters, without NUL and API keys"
        )
    duration = workload.duration_seconds
    if duration is not None and duration > LONGEST_RUN_SECONDS:
        raise InvalidValue("duration_seconds", duration, f"at most {LONGEST_RUN_SECONDS:g} for what is really played")


def _check_tenants(workload: Workload) -> None:
    names = {each.tenant for each in workload.classes if each.tenant}
    known = set(Tenant.objects.filter(name__in=names).values_list("name", flat=True))
    if unknown := sorted(names - known):
        raise InvalidValue("tenant", unknown[0], "the name of a tenant that there is, or empty for the Lab's own")


def _check_room() -> None:
    waiting = Run.objects.filter(state=State.WAITING).count() + Experiment.objects.filter(state=State.WAITING).count()
    if waiting >= MOST_WAITING:
        raise InvalidValue("run", "one more", f"at most {MOST_WAITING} that wait: stop some, or come back later")


def _ask_to_stop(row: Run | Experiment) -> None:
    row.stop_asked = True
    if row.state == State.WAITING:
        row.state, row.ended_at = State.STOPPED, timezone.now()
        if isinstance(row, Run) and not row.pool:
            transaction.on_commit(functools.partial(_forget_key, row.pk))
    row.save(update_fields=["stop_asked", "state", "ended_at"])


def _with_seed(workload: Workload, seed: int) -> Workload:
    return msgspec.structs.replace(workload, seed=seed)


def _without_keys(target: Target) -> dict[str, Any]:
    return dict(msgspec.to_builtins(target.without_keys()))


def _keep_key(run_ids: list[int], key: str) -> None:
    with Redis.from_url(settings.REDIS_URL, socket_timeout=5) as redis:
        for run_id in run_ids:
            redis.set(_key_place(run_id), key, ex=KEY_SECONDS)


def _forget_key(run_id: int) -> None:
    with Redis.from_url(settings.REDIS_URL, socket_timeout=5) as redis:
        take_key(run_id, redis=redis)


def _key_place(run_id: int) -> str:
    return f"footplate:lab:key:{run_id}"
