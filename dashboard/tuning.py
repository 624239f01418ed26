"""The Tuning page: levers by what they trade, presets, what is watched and tried, and what changes did."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_safe
from redis import Redis

from dashboard.pages import (
    PoolHeading,
    for_watchers,
    heading_of,
    may_steer_pool,
    read_pools,
    render_page,
)
from dashboard.permissions import may_experiment, may_steer
from dashboard.pool_gone import render_pool_page
from dashboard.presenters import LeverGroup, present_levers
from dashboard.routing import live_path
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from dashboard.tuning_presenters import HistoryRow, PresetCard, present_presets
from dashboard.tuning_reading import (
    CanaryPanel,
    envelope_among,
    ids_taking_work,
    read_engines,
    read_history,
    read_panel,
)
from dashboard.tuning_terms import TermsForm
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound, StaleVersion
from serving.contracts.tunables import TunableSpec, describe
from serving.lab.workloads.store import workload_names
from serving.tuning import canaries, guardrails, selectors
from serving.tuning.conflicts import Conflict, conflicts_of

_NUM_VERSIONS = 6
_LARGEST_NUMBER = 2**31 - 1
_ENDINGS = {"all": canaries.take_to_all, "back": canaries.take_back}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What `_tuning_standing.html` shows, and is fetched anew: what is watched and tried, the newest versions, and the
    `conflicts` of the values in force. `is_lively` says that it changes by itself."""

    pool: PoolHeading
    rows: tuple[HistoryRow, ...]
    newest: int
    in_force: int
    has_older: bool
    canary: CanaryPanel | None
    conflicts: tuple[Conflict, ...]
    is_lively: bool
    may_steer: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningPage(Standing):
    """What `tuning.html` shows. `workloads` are those that a change may be tried on by the simulator."""

    page: str = "tuning"
    pools: tuple[str, ...]
    socket_path: str
    lever_groups: tuple[LeverGroup, ...]
    presets: tuple[PresetCard, ...]
    terms: TermsForm
    workloads: tuple[str, ...]
    may_predict: bool


@require_safe
@for_watchers
async def first(_request: HttpRequest) -> HttpResponseBase:
    """The first pool's Tuning page; where there is no pool, the Live page, which says so."""
    _, pool = await in_thread(read_pools, None)
    return redirect("dashboard:live") if pool is None else redirect("dashboard:tuning", pool=pool.name)


@require_safe
@for_watchers
async def tuning(request: HttpRequest, pool: str) -> HttpResponseBase:
    """A pool's Tuning page."""
    page = await in_thread(_read_page, pool, await request.auser(), services_of(request).blocking_redis)
    return await render_pool_page(request, "dashboard/tuning.html", page)


@require_safe
@for_watchers
async def standing(request: HttpRequest, pool: str) -> HttpResponseBase:
    """The part of the Tuning page that changes with the versions, alone."""
    part = await in_thread(_read_standing, pool, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/_tuning_standing.html", part)


@require_safe
@for_watchers
async def conflicts(request: HttpRequest, pool: str) -> HttpResponseBase:
    """What would fight what, of the values in force with those of the query on top: `{"conflicts": [{fields,
    message}]}`. What is no value of a tunable is refused with status 400 and `{"error": {code, message, param}}`."""
    try:
        found = await in_thread(_read_conflicts, pool, request.GET.dict(), services_of(request).blocking_redis)
    except PoolNotFound:
        raise
    except DomainError as error:
        return _json({"error": {"code": error.code, "message": error.message, "param": error.param}}, status=400)
    return _json({"conflicts": found})


@require_http_methods(["GET", "HEAD", "POST"])
@for_watchers
async def end_canary(request: HttpRequest, pool: str, number: int, way: str) -> HttpResponseBase:
    """Take a version that is tried on one engine to `all` of them, or `back`. Who comes by a link changes nothing."""
    if way not in _ENDINGS:
        raise Http404
    if request.method != "POST":
        return redirect("dashboard:tuning", pool=pool)
    user = await request.auser()
    if not await in_thread(may_steer, user):
        raise PermissionDenied
    try:
        version = await in_thread(
            _ENDINGS[way],
            pool,
            min(number, _LARGEST_NUMBER),
            reason=request.POST.get("reason", ""),
            author=acting(request, user.get_username()),
            redis=services_of(request).blocking_redis,
        )
    except (StaleVersion, InvalidValue) as error:
        messages.error(request, f"Nothing was changed: {error.message}.")
        return redirect("dashboard:tuning", pool=pool)
    told = "runs on all engines" if way == "all" else f"is taken back by version {version.number}"
    messages.success(request, f"Version {number} {told}.")
    return redirect("dashboard:tuning", pool=pool)


@require_http_methods(["GET", "HEAD", "POST"])
@for_watchers
async def call_off(request: HttpRequest, pool: str, number: int) -> HttpResponseBase:
    """End the watch over a version: it stays, and nothing takes it back by itself. Who comes by a link changes
    nothing."""
    if request.method != "POST":
        return redirect("dashboard:tuning", pool=pool)
    user = await request.auser()
    if not await in_thread(may_steer, user):
        raise PermissionDenied
    try:
        await in_thread(
            guardrails.call_off,
            pool,
            min(number, _LARGEST_NUMBER),
            reason=request.POST.get("reason", ""),
            author=acting(request, user.get_username()),
        )
    except (StaleVersion, InvalidValue) as error:
        messages.error(request, f"Nothing was changed: {error.message}.")
    else:
        messages.success(request, f"Version {number} is watched no longer, and stays.")
    return redirect("dashboard:tuning", pool=pool)


def _read_page(name: str, user: Any, redis: Redis) -> TuningPage:
    part = _read_standing(name, user, redis)
    pool = selectors.find_pool(name)
    engines = read_engines(redis, name)
    values = selectors.current_tunables(name).tunables
    may_predict = part.may_steer and may_experiment(user)
    return TuningPage(
        **{field.name: getattr(part, field.name) for field in dataclasses.fields(part)},
        pools=read_pools(name)[0],
        socket_path=live_path(name),
        lever_groups=present_levers(describe(), pools=selectors.others_of_its_model(pool)),
        presets=present_presets(values),
        terms=TermsForm(engines=ids_taking_work(engines)),
        workloads=tuple(workload_names()) if may_predict else (),
        may_predict=may_predict,
    )


def _read_standing(name: str, user: Any, redis: Redis) -> Standing:
    pool = selectors.find_pool(name)
    history = read_history(pool, limit=_NUM_VERSIONS)
    engines = read_engines(redis, name)
    canary = read_panel(pool, engines, redis)
    return Standing(
        pool=heading_of(pool),
        rows=history.rows,
        newest=history.newest,
        in_force=history.in_force,
        has_older=history.has_older,
        canary=canary,
        conflicts=tuple(conflicts_of(selectors.current_tunables(name).tunables, envelope_among(engines))),
        is_lively=canary is not None or any(map(_is_lively, history.rows)),
        may_steer=may_steer_pool(user, pool),
    )


def _is_lively(row: HistoryRow) -> bool:
    is_watched = row.guardrail is not None and row.guardrail.state == "watching"
    return is_watched or (row.effect is not None and row.effect.is_open)


def _read_conflicts(name: str, typed: Mapping[str, str], redis: Redis) -> list[dict[str, Any]]:
    specs = {spec.name: spec for spec in describe()}
    changes = {field: _value(specs.get(field), text) for field, text in typed.items()}
    values = selectors.current_tunables(name).tunables.changed(changes)
    return [dataclasses.asdict(found) for found in conflicts_of(values, envelope_among(read_engines(redis, name)))]


def _value(spec: TunableSpec | None, text: str) -> Any:
    """A value from a query; what is no number stays a text, which the tunable refuses by its own words."""
    if spec is None or spec.kind in ("choice", "name"):
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if spec.kind == "integer" and number.is_integer() else number


def _json(content: Any, *, status: int = 200) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(content), content_type="application/json", status=status)
