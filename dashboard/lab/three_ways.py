"""The pages about the three ways of batching: what they are, the form that orders a comparison, and one as it runs and
when it is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from redis import Redis

from dashboard.lab.staleness import stale_ids
from dashboard.lab.three_ways_forms import ThreeWaysDraft, field_of, read_draft
from dashboard.lab.three_ways_presenters import (
    ThreeWaysPanel,
    ThreeWaysRow,
    WayPanel,
    explain,
    present_row,
    present_three_ways,
)
from dashboard.pages import only, read_pools, render_page
from dashboard.permissions import may_experiment, may_view_lab
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound
from serving.lab.experiments.three_ways_selectors import ThreeWays, find_three_ways, list_three_ways
from serving.lab.fingerprints import differences_now
from serving.lab.runs.services import order_experiment, stop_experiment
from serving.lab.workloads.store import find_workload, workload_names
from serving.tuning.selectors import current_tunables

_LONGEST_TITLE = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThreeWaysListPage:
    """What `three_ways_list.html` shows."""

    page: str = "lab"
    lab_page: str = "three_ways"
    ways: tuple[WayPanel, ...]
    rows: tuple[ThreeWaysRow, ...]
    stale_ids: frozenset[int]
    may_experiment: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThreeWaysFormPage:
    """What `three_ways_new.html` shows."""

    page: str = "lab"
    lab_page: str = "three_ways"
    draft: ThreeWaysDraft
    pools: tuple[str, ...]
    workloads: tuple[str, ...]
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThreeWaysPage:
    """What `three_ways.html` and its part `_three_ways.html` show."""

    page: str = "lab"
    lab_page: str = "three_ways"
    found: ThreeWaysPanel
    stale: tuple[str, ...]
    may_experiment: bool


@require_safe
@only(may_view_lab)
async def three_ways(request: HttpRequest) -> HttpResponseBase:
    """The ways in words and pictures, and the newest comparisons."""
    page = await in_thread(_read_list, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/three_ways_list.html", page)


@require_http_methods(["GET", "HEAD", "POST"])
@only(may_experiment)
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form that orders a comparison; a query may fill in `pool`, `workload` and the rest beforehand."""
    if request.method != "POST":
        page = await in_thread(_read_form, _prefilled(request.GET.dict()), {})
        return await render_page(request, "dashboard/lab/three_ways_new.html", page)
    draft = read_draft(request.POST.get)
    author = acting(request, (await request.auser()).get_username())
    try:
        experiment_id = await in_thread(_order, draft, author)
    except DomainError as error:
        field = "pool" if isinstance(error, PoolNotFound) else field_of(error.param)
        page = await in_thread(_read_form, draft, {field: error.message})
        return await render_page(request, "dashboard/lab/three_ways_new.html", page, status=400)
    return redirect("dashboard:lab_three_ways_one", experiment_id=experiment_id)


@require_safe
@only(may_view_lab)
async def one(request: HttpRequest, experiment_id: int) -> HttpResponseBase:
    """One comparison."""
    page = await in_thread(_read_page, experiment_id, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/three_ways.html", page)


@require_safe
@only(may_view_lab)
async def part(request: HttpRequest, experiment_id: int) -> HttpResponseBase:
    """The part of a comparison's page that changes while it runs, alone."""
    page = await in_thread(_read_page, experiment_id, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/_three_ways.html", page)


@require_safe
@only(may_view_lab)
async def download(_request: HttpRequest, experiment_id: int) -> HttpResponseBase:
    """A comparison's plan and result as JSON."""
    found = await in_thread(_find, experiment_id)
    if found.result is None:
        raise Http404("it has no result yet")
    content = {"plan": found.plan, "fingerprint": found.fingerprint, "result": found.result}
    response = HttpResponse(msgspec.json.encode(content), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="three-ways-{experiment_id}.json"'
    return response


@require_POST
@only(may_experiment)
async def stop(request: HttpRequest, experiment_id: int) -> HttpResponseBase:
    """Ask a comparison to end; what it changed goes back."""
    author = acting(request, (await request.auser()).get_username())
    await in_thread(_find, experiment_id)
    try:
        await in_thread(stop_experiment, experiment_id, author=author)
    except InvalidValue as error:
        messages.error(request, f"Nothing was stopped: {error.message}.")
    else:
        messages.success(request, "The comparison ends, and what it changed goes back.")
    return redirect("dashboard:lab_three_ways_one", experiment_id=experiment_id)


def _read_list(user: Any, redis: Redis) -> ThreeWaysListPage:
    found = list_three_ways()
    return ThreeWaysListPage(
        ways=explain(),
        rows=tuple(present_row(each) for each in found),
        stale_ids=stale_ids([each for each in found if each.plan.way == "played"], redis),
        may_experiment=may_experiment(user),
    )


def _read_form(draft: ThreeWaysDraft, errors: Mapping[str, str]) -> ThreeWaysFormPage:
    names, pool = read_pools(None)
    chosen = draft.pool or ("" if pool is None else str(pool.name))
    return ThreeWaysFormPage(
        draft=dataclasses.replace(draft, pool=chosen), pools=names, workloads=tuple(workload_names()), errors=errors
    )


def _prefilled(query: Mapping[str, str]) -> ThreeWaysDraft:
    known = {name: text for name, text in query.items() if name in ThreeWaysDraft.__slots__}
    return dataclasses.replace(ThreeWaysDraft(), **known)


def _order(draft: ThreeWaysDraft, author: Author) -> int:
    """The number of the comparison that was ordered. Raises `DomainError`, by the form's fields."""
    plan = draft.plan(find_workload)
    plan.check_against(current_tunables(draft.pool).tunables)
    experiment = order_experiment(
        "three_ways",
        pool=draft.pool,
        title=f"Three ways of batching with {plan.workload.name}"[:_LONGEST_TITLE],
        plan=msgspec.to_builtins(plan),
        author=author,
    )
    return int(experiment.pk)


def _read_page(experiment_id: int, user: Any, redis: Redis) -> ThreeWaysPage:
    found = _find(experiment_id)
    stale: tuple[str, ...] = ()
    if found.is_over and found.plan.way == "played":
        stale = differences_now(found.fingerprint, redis=redis, pool=found.pool)
    return ThreeWaysPage(found=present_three_ways(found), stale=stale, may_experiment=may_experiment(user))


def _find(experiment_id: int) -> ThreeWays:
    found = find_three_ways(min(experiment_id, 2**63 - 1))
    if found is None:
        raise Http404("there is no such comparison")
    return found
