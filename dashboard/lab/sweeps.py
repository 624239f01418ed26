"""The pages about sweeps: the list, the form that orders one, and one as it runs and when it is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
from django.contrib import messages
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from redis import Redis

from dashboard.lab.staleness import stale_ids
from dashboard.lab.sweeps_forms import SweepDraft, field_of, read_draft
from dashboard.lab.sweeps_presenters import (
    DimensionChoice,
    SweepPanel,
    SweepRow,
    dimension_choices,
    present_row,
    present_sweep,
)
from dashboard.pages import only, read_pools, render_page
from dashboard.permissions import may_experiment, may_steer, may_view_lab
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from dashboard.tuning_presenters import MetricOption, present_metrics
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound
from serving.lab.experiments.sweep_selectors import Sweep, find_sweep, list_sweeps
from serving.lab.fingerprints import differences_now
from serving.lab.runs.services import order_experiment, stop_experiment
from serving.lab.workloads.store import find_workload, workload_names

_LONGEST_TITLE = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepsPage:
    """What `sweeps.html` shows."""

    page: str = "lab"
    lab_page: str = "sweeps"
    rows: tuple[SweepRow, ...]
    stale_ids: frozenset[int]
    may_experiment: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepFormPage:
    """What `sweep_new.html` shows."""

    page: str = "lab"
    lab_page: str = "sweeps"
    draft: SweepDraft
    pools: tuple[str, ...]
    workloads: tuple[str, ...]
    dimensions: tuple[DimensionChoice, ...]
    metrics: tuple[MetricOption, ...]
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepPage:
    """What `sweep.html` and its part `_sweep.html` show."""

    page: str = "lab"
    lab_page: str = "sweeps"
    sweep: SweepPanel
    stale: tuple[str, ...]
    may_experiment: bool
    may_steer: bool


@require_safe
@only(may_view_lab)
async def sweeps(request: HttpRequest) -> HttpResponseBase:
    """The newest sweeps."""
    page = await in_thread(_read_list, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/sweeps.html", page)


@require_http_methods(["GET", "HEAD", "POST"])
@only(may_experiment)
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form that orders a sweep; a query may fill in `pool`, `workload` and the rest beforehand."""
    if request.method != "POST":
        page = await in_thread(_read_form, _prefilled(request.GET.dict()), {})
        return await render_page(request, "dashboard/lab/sweep_new.html", page)
    draft = read_draft(request.POST.get)
    author = acting(request, (await request.auser()).get_username())
    try:
        sweep_id = await in_thread(_order, draft, author)
    except DomainError as error:
        field = "pool" if isinstance(error, PoolNotFound) else field_of(error.param, draft)
        page = await in_thread(_read_form, draft, {field: error.message})
        return await render_page(request, "dashboard/lab/sweep_new.html", page, status=400)
    return redirect("dashboard:lab_sweep", sweep_id=sweep_id)


@require_safe
@only(may_view_lab)
async def sweep(request: HttpRequest, sweep_id: int) -> HttpResponseBase:
    """One sweep."""
    page = await in_thread(_read_sweep, sweep_id, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/sweep.html", page)


@require_safe
@only(may_view_lab)
async def part(request: HttpRequest, sweep_id: int) -> HttpResponseBase:
    """The part of a sweep's page that changes while it runs, alone."""
    page = await in_thread(_read_sweep, sweep_id, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/_sweep.html", page)


@require_POST
@only(may_experiment)
async def stop(request: HttpRequest, sweep_id: int) -> HttpResponseBase:
    """Ask a sweep to end; what it changed goes back."""
    author = acting(request, (await request.auser()).get_username())
    await in_thread(_find, sweep_id)
    try:
        await in_thread(stop_experiment, sweep_id, author=author)
    except InvalidValue as error:
        messages.error(request, f"Nothing was stopped: {error.message}.")
    else:
        messages.success(request, "The sweep ends, and what it changed goes back.")
    return redirect("dashboard:lab_sweep", sweep_id=sweep_id)


def _read_list(user: Any, redis: Redis) -> SweepsPage:
    found = list_sweeps()
    return SweepsPage(
        rows=tuple(present_row(each) for each in found),
        stale_ids=stale_ids([each for each in found if each.plan.way != "simulated"], redis),
        may_experiment=may_experiment(user),
    )


def _read_form(draft: SweepDraft, errors: Mapping[str, str]) -> SweepFormPage:
    names, pool = read_pools(None)
    chosen = draft.pool or ("" if pool is None else str(pool.name))
    return SweepFormPage(
        draft=dataclasses.replace(draft, pool=chosen),
        pools=names,
        workloads=tuple(workload_names()),
        dimensions=dimension_choices(),
        metrics=present_metrics(),
        errors=errors,
    )


def _prefilled(query: Mapping[str, str]) -> SweepDraft:
    known = {name: text for name, text in query.items() if name in SweepDraft.__slots__}
    return dataclasses.replace(SweepDraft(), **known)


def _order(draft: SweepDraft, author: Author) -> int:
    """The number of the sweep that was ordered. Raises `DomainError`, by the form's fields."""
    plan = draft.plan(find_workload)
    swept = " and ".join(dimension.name for dimension in plan.dimensions)
    experiment = order_experiment(
        "sweep",
        pool=draft.pool,
        title=f"{swept} with {plan.workload.name}"[:_LONGEST_TITLE],
        plan=msgspec.to_builtins(plan),
        author=author,
    )
    return int(experiment.pk)


def _read_sweep(sweep_id: int, user: Any, redis: Redis) -> SweepPage:
    found = _find(sweep_id)
    is_measured = found.is_over and found.plan.way != "simulated"
    return SweepPage(
        sweep=present_sweep(found),
        stale=differences_now(found.fingerprint, redis=redis, pool=found.pool) if is_measured else (),
        may_experiment=may_experiment(user),
        may_steer=may_steer(user),
    )


def _find(sweep_id: int) -> Sweep:
    found = find_sweep(min(sweep_id, 2**63 - 1))
    if found is None:
        raise Http404("there is no such sweep")
    return found
