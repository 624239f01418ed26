"""The pages about workloads: what is saved and ready, one of them drawn, its form, and measuring one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from redis import Redis

from dashboard.lab.workloads_forms import WorkloadForm, form_of
from dashboard.lab.workloads_presenters import (
    ClassRow,
    LengthsRow,
    WorkloadRow,
    present_charts,
    present_classes,
    present_lengths,
    present_row,
)
from dashboard.lab.workloads_reading import FormErrors, read_form
from dashboard.pages import only, render_page, whole_number
from dashboard.permissions import may_experiment, may_view_lab
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue, StaleVersion
from serving.lab.fingerprints import LENGTHS, differences, glimpse_fingerprint
from serving.lab.workloads import store
from serving.lab.workloads.arrivals import Poisson
from serving.lab.workloads.codec import LARGEST_BYTES, decode_workload, workload_to_json
from serving.lab.workloads.distributions import LogNormal
from serving.lab.workloads.workload import RequestClass, Workload

for_viewers = only(may_view_lab)
for_experimenters = only(may_experiment)

_LONGEST_EDITED = 200_000
_FRESH = Workload(
    name="new",
    arrivals=Poisson(1.0),
    classes=(
        RequestClass(
            name="chat",
            prompt_tokens=LogNormal(median=300, sigma=0.7, high=8192),
            output_tokens=LogNormal(median=100, sigma=0.7, high=2048),
        ),
    ),
    duration_seconds=120.0,
    warm_up_seconds=15.0,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """What `workloads.html` shows."""

    page: str = "lab"
    lab_page: str = "workloads"
    may_experiment: bool
    saved: tuple[WorkloadRow, ...]
    ready: tuple[WorkloadRow, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OnePage:
    """What `workload.html` shows. `revision` is None for a ready one, `charts` are for the page's scripts. `stale` says
    what of its lengths no longer holds, `measured_pool` whose requests it was measured from."""

    page: str = "lab"
    lab_page: str = "workloads"
    may_experiment: bool
    row: WorkloadRow
    source: str
    seed: int
    revision: int | None
    classes: tuple[ClassRow, ...]
    lengths: tuple[LengthsRow, ...]
    notes: tuple[str, ...]
    charts: dict[str, Any]
    stale: tuple[str, ...]
    measured_pool: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FormPage:
    """What `workload_form.html` shows. `name` is the stored one's, empty for a new one; `base` is whose copy it begins
    as, `text` the whole as JSON (None: too long to be changed here), `largest_file` in words."""

    page: str = "lab"
    lab_page: str = "workloads"
    name: str = ""
    base: str = ""
    revision: int | None = None
    form: WorkloadForm
    text: str | None
    largest_file: str
    reason: str = ""
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""


@require_safe
@for_viewers
async def workloads(request: HttpRequest) -> HttpResponseBase:
    """All workloads, saved and ready."""
    return await render_page(
        request, "dashboard/lab/workloads.html", await in_thread(_list_page, await request.auser())
    )


@require_safe
@for_viewers
async def workload(request: HttpRequest, name: str) -> HttpResponseBase:
    """One workload, its distributions drawn."""
    known = await in_thread(_find, name)
    if known is None:
        return await _missing(request)
    page = await in_thread(_one_page, known, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/workload.html", page)


@require_safe
@for_viewers
async def export(request: HttpRequest, name: str) -> HttpResponseBase:
    """One workload as a JSON file."""
    known = await in_thread(_find, name)
    if known is None:
        return await _missing(request)
    response = HttpResponse(workload_to_json(known.workload), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{known.workload.name}.workload.json"'
    return response


@require_http_methods(["GET", "HEAD", "POST"])
@for_experimenters
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form of a new workload, or of a copy of the one that `from` names; or one from a file or a text."""
    base_name = request.POST.get("base", "") or request.GET.get("from", "")
    known = await in_thread(_find, base_name) if base_name else None
    base = _copy_of(known.workload) if known is not None else _FRESH
    if request.method != "POST":
        page = _form_page(base, base=base_name if known is not None else "")
        return await render_page(request, "dashboard/lab/workload_form.html", page)
    author = await _author_of(request)
    origin: store.Origin = "written" if request.POST.get("way") == "fields" else "imported"

    def save(wanted: Workload) -> store.Known:
        return store.save_workload(wanted, author=author, origin=origin, reason=_reason_of(request))

    return await _store(request, base, save, base_name=base_name if known is not None else "", name="", revision=None)


@require_http_methods(["GET", "HEAD", "POST"])
@for_experimenters
async def edit(request: HttpRequest, name: str) -> HttpResponseBase:
    """The form that changes a workload; where another was faster, what was typed stays and nothing is changed."""
    known = await in_thread(_find, name)
    if known is None:
        return await _missing(request)
    if known.is_ready:
        messages.warning(request, "A ready workload cannot be changed: this is the form of its copy.")
        return redirect(f"{reverse('dashboard:lab_workload_new')}?from={name}")
    if request.method != "POST":
        page = _form_page(known.workload, name=name, revision=known.revision)
        return await render_page(request, "dashboard/lab/workload_form.html", page)
    author, based_on = await _author_of(request), whole_number(request.POST.get("revision"))

    def change(wanted: Workload) -> store.Known:
        return store.change_workload(name, wanted, author=author, based_on=based_on, reason=_reason_of(request))

    return await _store(request, known.workload, change, base_name="", name=name, revision=known.revision)


@require_POST
@for_experimenters
async def delete(request: HttpRequest, name: str) -> HttpResponseBase:
    """Delete a saved workload, unless somebody changed it meanwhile."""
    author, based_on = await _author_of(request), whole_number(request.POST.get("revision"))
    try:
        await in_thread(store.delete_workload, name, author=author, based_on=based_on)
    except store.WorkloadNotFound:
        return await _missing(request)
    except DomainError as error:
        messages.warning(request, f"The workload is not deleted: {error.message}.")
        return redirect("dashboard:lab_workload", name=name)
    messages.success(request, f"The workload {name} is deleted.")
    return redirect("dashboard:lab_workloads")


async def _store(
    request: HttpRequest,
    base: Workload,
    keep: Callable[[Workload], store.Known],
    *,
    base_name: str,
    name: str,
    revision: int | None,
) -> HttpResponseBase:
    """Read what was sent and store it, or show the form again with what is wrong."""
    errors: dict[str, str] = {}
    problem, status = "", 400
    try:
        wanted = await in_thread(_read, request, base)
        known = await in_thread(keep, wanted)
    except FormErrors as error:
        errors = error.errors
    except StaleVersion as error:
        problem, status = error.message, 409
    except DomainError as error:
        errors = {error.param or "": _sentence(error)}
    else:
        messages.success(request, f"The workload {known.workload.name} is stored.")
        return redirect("dashboard:lab_workload", name=known.workload.name)
    # What is wrong goes on from what the form was filled with; a conflict goes on from what is stored by now.
    typed = whole_number(request.POST.get("revision"))
    page = _form_page(
        base,
        name=name,
        base=base_name,
        revision=revision if status == 409 else typed or revision,
        typed=request.POST,
        errors=errors,
        problem=problem,
    )
    return await render_page(request, "dashboard/lab/workload_form.html", page, status=status)


def _read(request: HttpRequest, base: Workload) -> Workload:
    way = request.POST.get("way", "fields")
    if way == "fields":
        return read_form(request.POST.dict(), base)
    try:
        if way == "text":
            return decode_workload(request.POST.get("text", ""))
        file = request.FILES.get("file")
        if file is None:
            raise FormErrors({"file": "Choose a file"})
        return decode_workload(file.read(LARGEST_BYTES + 1))
    except InvalidValue as error:
        raise FormErrors({way: _sentence(error)}) from None


def _form_page(
    filled_with: Workload,
    *,
    name: str = "",
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, str] | None = None,
    **shown: Any,
) -> FormPage:
    way = "fields" if typed is None else typed.get("way", "fields")
    text = workload_to_json(filled_with).decode()
    if typed is not None and way == "text":
        text = str(typed.get("text", ""))
    told = {key: str(value) for key, value in typed.items()} if typed is not None and way == "fields" else None
    return FormPage(
        name=name,
        form=form_of(filled_with, typed=told, errors=errors or {}),
        text=text if len(text) <= _LONGEST_EDITED else None,
        largest_file=filesizeformat(min(LARGEST_BYTES, settings.FOOTPLATE_MAX_BODY_BYTES)),
        reason="" if typed is None else str(typed.get("reason", "")),
        errors=errors or {},
        **shown,
    )


def _list_page(user: Any) -> ListPage:
    return ListPage(
        may_experiment=may_experiment(user),
        saved=tuple(map(present_row, store.saved_workloads())),
        ready=tuple(map(present_row, store.ready_workloads())),
    )


def _one_page(known: store.Known, user: Any, redis: Redis) -> OnePage:
    evidence = known.evidence
    pool = "" if evidence is None else evidence.pool
    stale: tuple[str, ...] = ()
    if evidence is not None:
        stale = differences(evidence.fingerprint, glimpse_fingerprint(redis, pool), of=LENGTHS)
    return OnePage(
        may_experiment=may_experiment(user),
        row=present_row(known),
        source=known.workload.source,
        seed=known.workload.seed,
        revision=known.revision,
        classes=present_classes(known.workload),
        lengths=present_lengths(known.workload, evidence),
        notes=() if evidence is None else evidence.notes,
        charts=present_charts(known.workload, evidence),
        stale=stale,
        measured_pool=pool,
    )


def _find(name: str) -> store.Known | None:
    try:
        return store.find_known(name)
    except store.WorkloadNotFound:
        return None


def _copy_of(workload: Workload) -> Workload:
    return msgspec.structs.replace(workload, name=f"{workload.name[:58]}-copy")


async def _missing(request: HttpRequest) -> HttpResponseBase:
    messages.warning(request, "There is no such workload; somebody may have deleted or renamed it.")
    return await render_page(
        request, "dashboard/lab/workloads.html", await in_thread(_list_page, await request.auser()), status=404
    )


def _sentence(error: DomainError) -> str:
    return f"{error.message[:1].upper()}{error.message[1:]}"


def _reason_of(request: HttpRequest) -> str:
    return request.POST.get("reason", "").strip()


async def _author_of(request: HttpRequest) -> Author:
    return acting(request, (await request.auser()).get_username())
