"""A preset before it is applied: what it would change, and what would fight what then. Works without scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods
from redis import Redis

from dashboard.pages import (
    PoolHeading,
    for_watchers,
    heading_of,
    may_steer_pool,
    render_page,
    whole_number,
)
from dashboard.permissions import may_steer
from dashboard.pool_gone import render_pool_page
from dashboard.presenters import VersionRow
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from dashboard.tuning_history import read_newer
from dashboard.tuning_presenters import PresetCard, present_presets
from dashboard.tuning_reading import envelope_among, ids_taking_work, read_engines
from dashboard.tuning_terms import TermsForm, read_terms
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound, StaleVersion
from serving.contracts.presets import PRESETS, preset_changes
from serving.tuning import selectors, services
from serving.tuning.conflicts import Conflict, conflicts_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PresetPage:
    """What `preset.html` shows. `in_force` is the version that the change would be on; `problem` is a refusal, and
    `newer` the changes that it is about."""

    page: str = "tuning"
    pool: PoolHeading
    preset: PresetCard
    in_force: int
    conflicts: tuple[Conflict, ...]
    terms: TermsForm
    reason: str
    may_steer: bool
    problem: str | None = None
    newer: tuple[VersionRow, ...] = ()


@require_http_methods(["GET", "HEAD", "POST"])
@for_watchers
async def preset(request: HttpRequest, pool: str, name: str) -> HttpResponseBase:
    """What a preset would change of the values in force; posted, that change."""
    if name not in PRESETS:
        raise Http404
    user, redis = await request.auser(), services_of(request).blocking_redis
    if request.method != "POST":
        page = await in_thread(_read, pool, name, user, redis)
        return await render_pool_page(request, "dashboard/preset.html", page)
    if not await in_thread(may_steer, user):
        raise PermissionDenied
    based_on = whole_number(request.POST.get("based_on"))
    try:
        version = await in_thread(
            _store, pool, name, request.POST, based_on, acting(request, user.get_username()), redis
        )
    except PoolNotFound:
        raise
    except DomainError as error:
        page = await in_thread(_read_refused, pool, name, request.POST, error, based_on, user, redis)
        status = 409 if error.code in ("stale_version", "canary_running") else 400
        return await render_page(request, "dashboard/preset.html", page, status=status)
    messages.success(request, f"Preset {name}: version {version} is stored.")
    return redirect("dashboard:tuning", pool=pool)


def _read(pool_name: str, name: str, user: Any, redis: Redis) -> PresetPage:
    pool = selectors.find_pool(pool_name)
    current = selectors.current_tunables(pool_name)
    engines = read_engines(redis, pool_name)
    return PresetPage(
        pool=heading_of(pool),
        preset=next(card for card in present_presets(current.tunables) if card.name == name),
        in_force=current.version,
        conflicts=tuple(conflicts_of(current.tunables.changed(preset_changes(name)), envelope_among(engines))),
        terms=TermsForm(engines=ids_taking_work(engines)),
        reason=f"preset {name}: {PRESETS[name].reason}",
        may_steer=may_steer_pool(user, pool),
    )


def _read_refused(
    pool_name: str,
    name: str,
    form: Mapping[str, str],
    error: DomainError,
    based_on: int | None,
    user: Any,
    redis: Redis,
) -> PresetPage:
    """The page again with what was typed."""
    page = _read(pool_name, name, user, redis)
    is_late = isinstance(error, StaleVersion) and based_on is not None
    return dataclasses.replace(
        page,
        terms=read_terms(form, engines=page.terms.engines),
        reason=form.get("reason", ""),
        problem=error.message,
        newer=read_newer(pool_name, based_on) if is_late and based_on is not None else (),
    )


def _store(
    pool_name: str, name: str, form: Mapping[str, str], based_on: int | None, author: Author, redis: Redis
) -> int:
    """The number of the version that was stored. Raises what `services.change` does."""
    if based_on is None:
        raise InvalidValue("based_on", form.get("based_on"), "the number of the version in force")
    terms = read_terms(form, engines=None)
    version = services.change(
        pool_name,
        preset_changes(name),
        reason=form.get("reason", ""),
        author=author,
        redis=redis,
        based_on=based_on,
        guardrail=terms.guardrail(),
        canary=terms.is_canary,
        canary_engine=terms.engine or None,
    )
    return int(version.number)
