"""Switching an autopilot on and off, and its next step. Blocking.

Any number of processes may call `advance`: an autopilot's row is locked while it acts, and a version is stored only on
top of the one that it has looked at.
"""

from __future__ import annotations

import datetime
import logging
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone
from redis import Redis

from serving.audit.services import record
from serving.contracts.actors import Actor, Author, name_of
from serving.contracts.errors import CanaryRuns, DomainError, InvalidValue, StaleVersion
from serving.lab.autopilot.deciding import Judgement, Memory, Move, Trial, View, after_judgement, decide
from serving.lab.autopilot.seeing import look
from serving.lab.autopilot.suspending import (
    is_as_before,
    newest_of_others,
    suspended,
    what_the_lab_does,
    with_newest,
)
from serving.lab.autopilot.terms import Terms, decode_terms
from serving.lab.models import Autopilot, AutopilotMove
from serving.tuning import selectors, services
from serving.tuning.models import GuardrailState
from serving.tuning.storing import check_reason

logger = logging.getLogger(__name__)

AUTOPILOT = Actor("autopilot", "system")
_LONGEST_REASON = 500


def switch_on(pool: str, terms: Terms, *, reason: str, author: Author) -> Autopilot:
    """Let the autopilot hold a pool's objectives from now on, whatever it did before; it forgets what it remembers.

    Raises `PoolNotFound`, `PoolNotConfigured`, and `InvalidValue` for terms or a reason that cannot be kept.
    """
    terms.check()
    check_reason(reason)
    with transaction.atomic():
        found = selectors.find_configured_pool(pool)
        row = _locked(found.name)
        before = row.terms if row.is_on else None
        row.is_on, row.paused_because, row.terms = True, "", msgspec.to_builtins(terms)
        row.memory = _stored(Memory(version=selectors.newest_stored(found).number))
        _settle_open_move(row, "overtaken")
        _save(row, author)
        changes = {"terms": [before, row.terms]}
        _record("autopilot switched on", pool, author=author, reason=reason, changes=changes)
    return row


def switch_off(pool: str, *, reason: str, author: Author) -> None:
    """Let it move nothing any more; what it moved stays as it is. Raises `InvalidValue` where it is off."""
    check_reason(reason)
    with transaction.atomic():
        row = _locked(selectors.find_pool(pool).name)
        if not row.is_on:
            raise InvalidValue("autopilot", "off", "an autopilot that is on")
        row.is_on, row.paused_because = False, ""
        _settle_open_move(row, "overtaken")
        _save(row, author)
        _record("autopilot switched off", pool, author=author, reason=reason)


def resume(pool: str, *, reason: str, author: Author) -> None:
    """Let a paused autopilot go on, from the values as they are now. Raises `InvalidValue` where it is not paused."""
    check_reason(reason)
    with transaction.atomic():
        found = selectors.find_configured_pool(pool)
        row = _locked(found.name)
        if not (row.is_on and row.paused_because):
            raise InvalidValue("autopilot", "working" if row.is_on else "off", "an autopilot that is paused")
        row.paused_because = ""
        row.memory = _stored(Memory(version=selectors.newest_stored(found).number))
        _save(row, author)
        _record("autopilot resumed", pool, author=author, reason=reason)


def advance_all(redis: Redis) -> None:
    """Let every autopilot that is on and not paused take its next step. One that cannot does not hold up another."""
    for pool in Autopilot.objects.filter(is_on=True, paused_because="").values_list("pool", flat=True):
        try:
            advance(pool, redis=redis)
        except DomainError as error:
            logger.warning("the autopilot of %s did nothing: %s", pool, error.message)


def advance(pool: str, *, redis: Redis, now: float | None = None) -> None:
    """Look at the pool, and do what there is to do: judge the last move, make another, or nothing.

    Does nothing while the Lab plays on the pool, until its load has left the figures and its tunables are back, while a
    version is tried on one engine or a guardrail watches a change of somebody else. Pauses once somebody else has
    changed a tunable, or where an experiment's value stays.
    """
    moment = timezone.now().timestamp() if now is None else now
    view = look(redis, pool, now=moment)
    with transaction.atomic():
        row = _locked(pool)
        if not row.is_on or row.paused_because:
            return
        terms = decode_terms(row.terms)
        memory = msgspec.convert(row.memory, type=Memory)
        found = selectors.find_configured_pool(pool)
        newest = selectors.newest_stored(found)
        if (other := newest_of_others(found, memory)) is not None:
            _pause(row, memory, f"version {other.number} is of {other.author}, who knows better")
            return
        memory = with_newest(memory, newest)
        if lab := what_the_lab_does(pool):
            memory = suspended(memory, now=moment)
        elif not is_as_before(found, memory, newest):
            _pause(row, memory, f"version {newest.number} of {newest.author} stayed when that was over")
            return
        else:
            memory = msgspec.structs.replace(memory, before_experiment=None)
        if (busy := lab or _what_holds(pool) or _aftermath(memory, moment)) or view is None:
            says = busy or "no figures of the pool have come for some seconds"
            _keep_memory(row, msgspec.structs.replace(memory, says=says, calm_since=None, missed_since={}))
            return
        _act(row, terms, memory, view, redis=redis)


def _act(row: Autopilot, terms: Terms, memory: Memory, view: View, *, redis: Redis) -> None:
    decision = decide(terms, memory, view)
    try:
        # What it changes is undone where it cannot be kept, and then is tried again.
        with transaction.atomic():
            if decision.judgement is not None:
                memory = _carry_out(row, terms, decision.memory, decision.judgement, view, redis=redis)
            elif decision.move is not None:
                memory = _make(row, decision.memory, decision.move, view, redis=redis)
            else:
                memory = decision.memory
    except (StaleVersion, CanaryRuns) as error:
        memory = msgspec.structs.replace(decision.memory, says=f"could not act: {error.message}")
    _keep_memory(row, memory)


def _make(row: Autopilot, memory: Memory, move: Move, view: View, *, redis: Redis) -> Memory:
    version = services.change(
        row.pool,
        {move.field: move.value},
        reason=move.reason[:_LONGEST_REASON],
        author=AUTOPILOT,
        redis=redis,
        based_on=memory.version,
    )
    made = AutopilotMove.objects.create(
        autopilot=row,
        field=move.field,
        before=move.before,
        after=move.value,
        version=version.number,
        reason=move.reason[:_LONGEST_REASON],
        figures_before=_figures(view),
    )
    measured = view.metrics.get(move.metric)
    trial = Trial(
        move_id=made.pk,
        field=move.field,
        before=move.before,
        after=move.value,
        metric=move.metric,
        value_ms=None if measured is None else measured.value_ms,
        missed=tuple(memory.missed_since),
        made_at=view.now,
    )
    return msgspec.structs.replace(
        memory, version=version.number, trial=trial, missed_since={}, calm_since=None, says=move.reason
    )


def _carry_out(
    row: Autopilot, terms: Terms, memory: Memory, judgement: Judgement, view: View, *, redis: Redis
) -> Memory:
    trial = memory.trial
    assert trial is not None, "nothing was on trial"
    number = memory.version
    if judgement.verdict == "undone":
        reason = f"undone: {judgement.reason} ({trial.field} back to {trial.before:g})"
        number = services.change(
            row.pool,
            {trial.field: trial.before},
            reason=reason[:_LONGEST_REASON],
            author=AUTOPILOT,
            redis=redis,
            based_on=memory.version,
        ).number
    AutopilotMove.objects.filter(pk=trial.move_id).update(
        state=judgement.verdict, figures_after=_figures(view), judged_at=_moment(view.now), verdict=judgement.reason
    )
    return msgspec.structs.replace(after_judgement(terms, memory, judgement, now=view.now), version=number)


def _pause(row: Autopilot, memory: Memory, because: str) -> None:
    row.paused_because = because[:300]
    _settle_open_move(row, "overtaken")
    row.memory = _stored(msgspec.structs.replace(memory, trial=None, missed_since={}, calm_since=None))
    row.save(update_fields=["paused_because", "memory"])
    _record("autopilot paused", row.pool, author=AUTOPILOT, reason=row.paused_because)


def _what_holds(pool: str) -> str:
    """Why nothing may be moved just now; empty where something may."""
    found = selectors.find_pool(pool)
    if selectors.running_canary(found) is not None:
        return "waits while a version is tried on one engine"
    guardrail = selectors.newest_guardrail(found)
    if guardrail is not None and guardrail.state == GuardrailState.WATCHING:
        return f"waits while version {guardrail.version.number} is watched by its guardrail"
    return ""


def _aftermath(memory: Memory, now: float) -> str:
    if memory.held_until is None or now >= memory.held_until:
        return ""
    return "waits until figures no longer tell of what the Lab played"


def _locked(pool: str) -> Autopilot:
    Autopilot.objects.get_or_create(pool=pool)
    return Autopilot.objects.select_for_update().get(pool=pool)


def _settle_open_move(row: Autopilot, state: str) -> None:
    row.moves.filter(state="tried").update(state=state, judged_at=timezone.now())


def _save(row: Autopilot, author: Author) -> None:
    row.changed_by, row.changed_at = name_of(author), timezone.now()
    row.save()


def _keep_memory(row: Autopilot, memory: Memory) -> None:
    row.memory = _stored(memory)
    row.save(update_fields=["memory"])


def _stored(memory: Memory) -> dict[str, Any]:
    return dict(msgspec.to_builtins(memory))


def _figures(view: View) -> dict[str, Any]:
    figures: dict[str, Any] = {name: round(each.value_ms, 1) for name, each in view.metrics.items()}
    sight = view.sight
    return figures | {
        "num_waiting": sight.num_waiting,
        "num_running": sight.num_running,
        "kv_used_ratio": round(sight.kv_used_ratio, 4),
    }


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _record(action: Any, pool: str, *, author: Author, reason: str, changes: dict[str, Any] | None = None) -> None:
    record(action, actor=author, subject_kind="pool", subject=pool, pool=pool, changes=changes, reason=reason)
