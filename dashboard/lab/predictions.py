"""What if?: the list of predictions with the Lab's own record, the form that asks for one, and one as it is computed
and after it was applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe
from redis import Redis

from dashboard.lab.predictions_forms import Draft, Field, fields_for, read_draft
from dashboard.lab.predictions_presenters import (
    PredictionPanel,
    PredictionRow,
    RecordRow,
    present_prediction,
    present_record,
    present_row,
)
from dashboard.lab.staleness import stale_ids
from dashboard.pages import only, read_pools, render_page
from dashboard.permissions import may_experiment, may_view_lab
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, PoolNotFound
from serving.lab.predictions.selectors import (
    PredictionView,
    Record,
    find_prediction,
    list_predictions,
    read_record,
)
from serving.lab.predictions.services import order_prediction
from serving.lab.workloads.store import find_workload, workload_names
from serving.tuning.selectors import current_tunables

_JSON = "application/json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionsPage:
    """What `predictions.html` shows."""

    page: str = "lab"
    lab_page: str = "predictions"
    rows: tuple[PredictionRow, ...]
    record: Record
    record_rows: tuple[RecordRow, ...]
    stale_ids: frozenset[int]
    may_experiment: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFormPage:
    """What `prediction_new.html` shows. `problem` is what is wrong beside no field that the form has."""

    page: str = "lab"
    lab_page: str = "predictions"
    draft: Draft
    pools: tuple[str, ...]
    workloads: tuple[str, ...]
    fields: tuple[Field, ...]
    errors: Mapping[str, str]
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionPage:
    """What `prediction.html` and its part `_prediction.html` show."""

    page: str = "lab"
    lab_page: str = "predictions"
    found: PredictionPanel


@require_safe
@only(may_view_lab)
async def predictions(request: HttpRequest) -> HttpResponseBase:
    """The newest predictions, and how good they were."""
    page = await in_thread(_read_list, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/predictions.html", page)


@require_http_methods(["GET", "HEAD", "POST"])
@only(may_experiment)
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form that asks what if?; a query may fill in `pool`, `workload` and tunables by name.

    Who posts it and accepts JSON alone gets `{id, url, part_url}` with status 201, or `{"error": {message, param}}`
    with status 400.
    """
    if request.method != "POST":
        page = await in_thread(_read_form, read_draft(request.GET.dict(), prefix=""), None)
        return await render_page(request, "dashboard/lab/prediction_new.html", page)
    draft = read_draft(request.POST.dict())
    wants_json = request.headers.get("Accept") == _JSON
    author = acting(request, (await request.auser()).get_username())
    try:
        number = await in_thread(_order, draft, author, services_of(request).blocking_redis)
    except DomainError as error:
        if wants_json:
            return _json({"error": {"message": error.message, "param": error.param}}, status=400)
        page = await in_thread(_read_form, draft, error)
        return await render_page(request, "dashboard/lab/prediction_new.html", page, status=400)
    if wants_json:
        found = {name: reverse(f"dashboard:{view}", args=[number]) for name, view in _ADDRESSES.items()}
        return _json({"id": number, **found}, status=201)
    return redirect("dashboard:lab_prediction", prediction_id=number)


@require_safe
@only(may_view_lab)
async def prediction(request: HttpRequest, prediction_id: int) -> HttpResponseBase:
    """One prediction."""
    page = await in_thread(_read_page, prediction_id)
    return await render_page(request, "dashboard/lab/prediction.html", page)


@require_safe
@only(may_view_lab)
async def part(request: HttpRequest, prediction_id: int) -> HttpResponseBase:
    """The part of a prediction's page that changes while it is computed, alone."""
    page = await in_thread(_read_page, prediction_id)
    return await render_page(request, "dashboard/lab/_prediction.html", page)


_ADDRESSES = {"url": "lab_prediction", "part_url": "lab_prediction_part"}


def _read_list(user: Any, redis: Redis) -> PredictionsPage:
    found, record = list_predictions(), read_record()
    return PredictionsPage(
        rows=tuple(present_row(each) for each in found),
        record=record,
        record_rows=present_record(record),
        stale_ids=stale_ids(found, redis),
        may_experiment=may_experiment(user),
    )


def _read_form(draft: Draft, error: DomainError | None) -> PredictionFormPage:
    names, pool = read_pools(None)
    chosen = draft.pool if draft.pool in names else "" if pool is None else str(pool.name)
    if not chosen:
        raise PoolNotFound("there is no pool yet")
    fields = fields_for(draft, current_tunables(chosen).tunables)
    known = {field.name for field in fields} | {"workload"}
    at = "" if error is None or error.param not in known else error.param
    return PredictionFormPage(
        draft=dataclasses.replace(draft, pool=chosen),
        pools=names,
        workloads=tuple(workload_names()),
        fields=fields,
        errors={at: error.message} if error is not None and at else {},
        problem=error.message if error is not None and not at else "",
    )


def _order(draft: Draft, author: Author, redis: Redis) -> int:
    """The number of the prediction that was ordered. Raises `DomainError`, by the form's fields."""
    return order_prediction(
        draft.pool,
        proposed=draft.proposed(),
        workload=find_workload(draft.workload) if draft.workload else None,
        author=author,
        redis=redis,
    )


def _read_page(prediction_id: int) -> PredictionPage:
    return PredictionPage(found=present_prediction(_find(prediction_id)))


def _find(prediction_id: int) -> PredictionView:
    found = find_prediction(min(prediction_id, 2**63 - 1))
    if found is None:
        raise Http404("there is no such prediction")
    return found


def _json(content: Any, *, status: int) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(content), content_type=_JSON, status=status)
