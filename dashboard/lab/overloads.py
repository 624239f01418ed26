"""The pages about overload tests: the list, the form that orders one, and one as it runs and when it is done."""

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

from dashboard.lab.overloads_forms import OverloadDraft, field_of, read_draft
from dashboard.lab.overloads_presenters import OverloadPanel, OverloadRow, present_overload, present_row
from dashboard.lab.staleness import stale_ids
from dashboard.pages import only, read_pools, render_page
from dashboard.permissions import may_experiment, may_view_lab
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound
from serving.lab.experiments.overload_selectors import Overload, find_overload, known_capacity, list_overloads
from serving.lab.fingerprints import differences_now, read_fingerprint
from serving.lab.runs.services import order_experiment, stop_experiment
from serving.lab.workloads.store import find_workload, workload_names
from serving.tuning.selectors import current_tunables

_LONGEST_TITLE = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverloadsPage:
    """What `overloads.html` shows."""

    page: str = "lab"
    lab_page: str = "overloads"
    rows: tuple[OverloadRow, ...]
    stale_ids: frozenset[int]
    may_experiment: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverloadFormPage:
    """What `overload_new.html` shows."""

    page: str = "lab"
    lab_page: str = "overloads"
    draft: OverloadDraft
    pools: tuple[str, ...]
    workloads: tuple[str, ...]
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverloadPage:
    """What `overload.html` and its part `_overload.html` show."""

    page: str = "lab"
    lab_page: str = "overloads"
    test: OverloadPanel
    stale: tuple[str, ...]
    may_experiment: bool


@require_safe
@only(may_view_lab)
async def overloads(request: HttpRequest) -> HttpResponseBase:
    """The newest overload tests."""
    page = await in_thread(_read_list, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/overloads.html", page)


@require_http_methods(["GET", "HEAD", "POST"])
@only(may_experiment)
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form that orders an overload test; a query may fill in `pool`, `workload` and the rest beforehand."""
    if request.method != "POST":
        page = await in_thread(_read_form, _prefilled(request.GET.dict()), {})
        return await render_page(request, "dashboard/lab/overload_new.html", page)
    draft = read_draft(request.POST.get)
    author = acting(request, (await request.auser()).get_username())
    try:
        overload_id = await in_thread(_order, draft, author, services_of(request).blocking_redis)
    except DomainError as error:
        field = "pool" if isinstance(error, PoolNotFound) else field_of(error.param)
        page = await in_thread(_read_form, draft, {field: error.message})
        return await render_page(request, "dashboard/lab/overload_new.html", page, status=400)
    return redirect("dashboard:lab_overload", overload_id=overload_id)


@require_safe
@only(may_view_lab)
async def overload(request: HttpRequest, overload_id: int) -> HttpResponseBase:
    """One overload test."""
    page = await in_thread(_read_page, overload_id, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/overload.html", page)


@require_safe
@only(may_view_lab)
async def part(request: HttpRequest, overload_id: int) -> HttpResponseBase:
    """The part of a test's page that changes while it runs, alone."""
    page = await in_thread(_read_page, overload_id, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/_overload.html", page)


@require_safe
@only(may_view_lab)
async def download(_request: HttpRequest, overload_id: int) -> HttpResponseBase:
    """A test's plan and result as JSON."""
    found = await in_thread(_find, overload_id)
    if found.result is None:
        raise Http404("it has no result yet")
    content = {"plan": found.plan, "fingerprint": found.fingerprint, "result": found.result}
    response = HttpResponse(msgspec.json.encode(content), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="overload-{overload_id}.json"'
    return response


@require_POST
@only(may_experiment)
async def stop(request: HttpRequest, overload_id: int) -> HttpResponseBase:
    """Ask a test to end."""
    author = acting(request, (await request.auser()).get_username())
    await in_thread(_find, overload_id)
    try:
        await in_thread(stop_experiment, overload_id, author=author)
    except InvalidValue as error:
        messages.error(request, f"Nothing was stopped: {error.message}.")
    else:
        messages.success(request, "The overload test ends.")
    return redirect("dashboard:lab_overload", overload_id=overload_id)


def _read_list(user: Any, redis: Redis) -> OverloadsPage:
    found = list_overloads()
    return OverloadsPage(
        rows=tuple(present_row(each) for each in found),
        stale_ids=stale_ids([each for each in found if each.plan.way == "played"], redis),
        may_experiment=may_experiment(user),
    )


def _read_form(draft: OverloadDraft, errors: Mapping[str, str]) -> OverloadFormPage:
    names, pool = read_pools(None)
    chosen = draft.pool or ("" if pool is None else str(pool.name))
    return OverloadFormPage(
        draft=dataclasses.replace(draft, pool=chosen), pools=names, workloads=tuple(workload_names()), errors=errors
    )


def _prefilled(query: Mapping[str, str]) -> OverloadDraft:
    known = {name: text for name, text in query.items() if name in OverloadDraft.__slots__}
    return dataclasses.replace(OverloadDraft(), **known)


def _order(draft: OverloadDraft, author: Author, redis: Redis) -> int:
    """The number of the test that was ordered. Raises `DomainError`, by the form's fields."""
    plan = draft.plan(find_workload)
    if draft.reuse == "on":
        known = known_capacity(
            draft.pool,
            plan.workload,
            way=plan.way,
            tunables=current_tunables(draft.pool).tunables.as_dict(),
            fingerprint=read_fingerprint(redis, draft.pool),
        )
        plan = msgspec.structs.replace(plan, capacity=known)
    experiment = order_experiment(
        "overload",
        pool=draft.pool,
        title=f"{plan.multiples[-1]:g} times capacity with {plan.workload.name}"[:_LONGEST_TITLE],
        plan=msgspec.to_builtins(plan),
        author=author,
    )
    return int(experiment.pk)


def _read_page(overload_id: int, user: Any, redis: Redis) -> OverloadPage:
    found = _find(overload_id)
    stale: tuple[str, ...] = ()
    if found.is_over and found.plan.way == "played":
        stale = differences_now(found.fingerprint, redis=redis, pool=found.pool)
    return OverloadPage(test=present_overload(found), stale=stale, may_experiment=may_experiment(user))


def _find(overload_id: int) -> Overload:
    found = find_overload(min(overload_id, 2**63 - 1))
    if found is None:
        raise Http404("there is no such overload test")
    return found
