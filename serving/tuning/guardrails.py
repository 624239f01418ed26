"""Guardrails: stored with a change, watched by the active monitor, which takes the change back by itself.

Blocking. Two monitors may act at once for a moment: whoever ends the guardrail in the database first does, and the
other finds it ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from redis import Redis

from serving.audit.services import record
from serving.contracts.actors import Actor, Author, name_of
from serving.contracts.errors import DomainError, StaleVersion
from serving.contracts.guardrails import GuardrailTerms
from serving.contracts.ids import PoolName
from serving.telemetry.conditions import METRICS, Condition, told
from serving.tuning.happenings import note
from serving.tuning.models import Canary, CanaryState, Guardrail, GuardrailState, TunablesVersion
from serving.tuning.selectors import newest_stored, tunables_of
from serving.tuning.storing import announce_on_commit, audited_changes, check_reason, end_canary, lock_pool, store

GUARDRAIL = Actor("guardrail", "system")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A guardrail that is watched. Times are unix seconds; `missed_since` is None while the bound is kept."""

    id: int
    pool: PoolName
    version: int
    condition: Condition
    starts_at: float
    watch_seconds: float
    missed_since: float | None


def attach(version: TunablesVersion, terms: GuardrailTerms) -> Guardrail:
    """Store a guardrail with a version, in the transaction that stores the version. `terms` were checked."""
    return Guardrail.objects.create(
        version=version,
        metric=terms.metric,
        bound=terms.bound,
        window_seconds=terms.window_seconds,
        watch_seconds=terms.watch_seconds,
        starts_at=timezone.now(),
    )


def watched() -> list[Watched]:
    """All that is watched."""
    found = Guardrail.objects.filter(state=GuardrailState.WATCHING).select_related("version__pool")
    return [_describe(guardrail) for guardrail in found]


# `starts_at`, where it is given, is when the watch began that was seen: one that began anew meanwhile, as it does when
# a canary is taken to all, is another, of which nothing was seen yet.


def note_missed_since(guardrail_id: int, since: float | None, *, starts_at: float | None = None) -> None:
    """Remember since when the bound is missed (None: it is kept), for the monitor that may take over."""
    moment = None if since is None else datetime.fromtimestamp(since, UTC)
    _watching(guardrail_id, starts_at).update(missed_since=moment)


def let_pass(guardrail_id: int, *, starts_at: float | None = None) -> bool:
    """End a watch in which the bound was kept. False where it had ended, or began anew."""
    note_text = "the bound was kept to the end of the watch"
    return _end(guardrail_id, GuardrailState.PASSED, note_text=note_text, starts_at=starts_at)


def call_off(name: str, number: int, *, reason: str, author: Author) -> Guardrail:
    """End the watch over version `number` before its time: the version stays, and nothing takes it back by itself.

    Raises `PoolNotFound`, `InvalidValue` for a reason that cannot be kept, and `StaleVersion` where that version is
    not, or no longer, watched.
    """
    check_reason(reason)
    with transaction.atomic():
        pool = lock_pool(name)
        watching = Guardrail.objects.filter(version__pool=pool, version__number=number)
        guardrail = watching.select_related("version__pool").first()
        note_text = f"called off by {name_of(author)}" + (f": {reason}" if reason else "")
        if guardrail is None or not _end(guardrail.pk, GuardrailState.CALLED_OFF, note_text=note_text):
            what = (
                "has no guardrail" if guardrail is None else f"is watched no longer: its guardrail {_word(guardrail)}"
            )
            raise StaleVersion(f"version {number} {what}")
        record(
            "guardrail called off",
            actor=author,
            subject_kind="pool",
            subject=name,
            pool=name,
            changes={"version": [number, number]},
            reason=reason,
        )
        guardrail.refresh_from_db()
    return guardrail


def call_off_all_of(pools: Collection[str]) -> None:
    """End the watch over every version of these pools, which nobody watches from now on: when they are back, nothing
    could say whether the bound was kept meanwhile."""
    watching = Guardrail.objects.filter(version__pool__name__in=pools, state=GuardrailState.WATCHING)
    watching.update(
        state=GuardrailState.CALLED_OFF,
        ended_at=timezone.now(),
        note="called off: its pool was left out before its end",
    )


def take_back(
    guardrail_id: int, *, value: float, redis: Redis, starts_at: float | None = None
) -> TunablesVersion | None:
    """End a guardrail whose bound was missed for too long, and store the values of the version before anew.

    None where it had ended meanwhile, as it has once a newer version is stored, or began anew, or the version before
    would do no longer, which its note then says.
    """
    try:
        with transaction.atomic():
            return _take_back(guardrail_id, value=value, redis=redis, starts_at=starts_at)
    except DomainError as error:
        note_text = f"could not be rolled back: {error.message}"
        _end(guardrail_id, GuardrailState.STUCK, note_text=note_text, value=value, starts_at=starts_at)
        return None


def _take_back(guardrail_id: int, *, value: float, redis: Redis, starts_at: float | None) -> TunablesVersion | None:
    guardrail = Guardrail.objects.select_related("version__pool").filter(pk=guardrail_id).first()
    if guardrail is None:
        return None
    watched_version = guardrail.version
    pool = lock_pool(watched_version.pool.name)
    current = newest_stored(pool)
    if current.number != watched_version.number:
        _end(guardrail_id, GuardrailState.SUPERSEDED, note_text=f"version {current.number} came before its end")
        return None
    canary = Canary.objects.filter(version=current, state=CanaryState.RUNNING).first()
    reason = _reason(guardrail, value, engine_id=None if canary is None else canary.engine_id)
    if not _end(guardrail_id, GuardrailState.MISSED, note_text=reason, value=value, starts_at=starts_at):
        return None
    if canary is not None:
        end_canary(current, CanaryState.WITHDRAWN, author=GUARDRAIL)
    before = pool.versions.get(number=current.number - 1)
    version = store(current, tunables_of(before.values), reason=reason, author=GUARDRAIL)
    record(
        "guardrail rolled back",
        actor=GUARDRAIL,
        subject_kind="pool",
        subject=pool.name,
        pool=pool.name,
        changes=audited_changes(version, current),
        reason=reason,
    )
    announce_on_commit(version, redis=redis)
    note(redis, PoolName(pool.name), "guardrail", subject=f"version {current.number}", text=reason)
    return version


def _reason(guardrail: Guardrail, value: float, *, engine_id: str | None) -> str:
    """`engine_id` is of the engine that tried the version; None where all ran it."""
    metric = METRICS[guardrail.metric]
    where = "" if engine_id is None else f" on {engine_id}"
    return (
        f"version {guardrail.version.number} rolled back: {metric.title}{where} was {told(value, metric.unit)}, above"
        f" {told(guardrail.bound, metric.unit)} for {guardrail.window_seconds:g} s"
    )


def _watching(guardrail_id: int, starts_at: float | None) -> QuerySet[Guardrail]:
    watching = Guardrail.objects.filter(pk=guardrail_id, state=GuardrailState.WATCHING)
    return watching if starts_at is None else watching.filter(starts_at=datetime.fromtimestamp(starts_at, UTC))


def _end(
    guardrail_id: int,
    state: GuardrailState,
    *,
    note_text: str,
    value: float | None = None,
    starts_at: float | None = None,
) -> bool:
    """Whether it was still watched, which is true for one caller alone."""
    watching = _watching(guardrail_id, starts_at)
    return bool(watching.update(state=state, ended_at=timezone.now(), note=note_text[:500], value=value))


def _word(guardrail: Guardrail) -> str:
    words = {"passed": "has passed", "missed": "was missed", "called_off": "was called off"}
    return words.get(guardrail.state, f"is {guardrail.state}")


def _describe(guardrail: Guardrail) -> Watched:
    return Watched(
        id=guardrail.pk,
        pool=PoolName(guardrail.version.pool.name),
        version=guardrail.version.number,
        condition=Condition(
            metric=guardrail.metric, bound=guardrail.bound, for_seconds=guardrail.window_seconds, is_above=True
        ),
        starts_at=guardrail.starts_at.timestamp(),
        watch_seconds=guardrail.watch_seconds,
        missed_since=None if guardrail.missed_since is None else guardrail.missed_since.timestamp(),
    )
