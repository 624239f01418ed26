"""The page on which a workload is measured from the request log: looked at first, saved then."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_http_methods
from redis import Redis

from dashboard.lab.workloads import for_experimenters
from dashboard.lab.workloads_presenters import (
    ClassRow,
    LengthsRow,
    present_charts,
    present_classes,
    present_lengths,
)
from dashboard.pages import render_page
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.errors import DomainError, InvalidValue
from serving.lab.fingerprints import glimpse_fingerprint
from serving.lab.workloads.measuring import ARRIVALS_AS, Measured, measure_workload
from serving.lab.workloads.store import save_workload
from serving.lab.workloads.words import arrivals_in_words
from serving.tuning.selectors import configured_pool_names

_FIELDS = ("name", "pool", "tenant", "since", "until", "arrivals_as", "reason")
_HOURS_BY_DEFAULT = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What was measured, before it is saved."""

    arrivals: str
    num_requests: int
    num_in_range: int
    first_at: datetime.datetime
    last_at: datetime.datetime
    cv: float | None
    classes: tuple[ClassRow, ...]
    lengths: tuple[LengthsRow, ...]
    notes: tuple[str, ...]
    charts: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePage:
    """What `workload_measure.html` shows. `draft` is what stands in the fields, times in UTC."""

    page: str = "lab"
    lab_page: str = "workloads"
    pools: tuple[str, ...]
    ways: tuple[str, ...] = ARRIVALS_AS
    draft: Mapping[str, str]
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    preview: Preview | None = None


@require_http_methods(["GET", "HEAD", "POST"])
@for_experimenters
async def measure(request: HttpRequest) -> HttpResponseBase:
    """Measure what the log has of a time range: shown where `act` is `look`, saved where it is `save`."""
    if request.method != "POST":
        pool = request.GET.get("pool", "")[:100]
        page = await in_thread(_page, _fresh_draft(timezone.now()) | {"pool": pool})
        return await render_page(request, "dashboard/lab/workload_measure.html", page)
    draft = {field: request.POST.get(field, "").strip() for field in _FIELDS}
    author = acting(request, (await request.auser()).get_username())
    errors: dict[str, str] = {}
    measured = None
    try:
        measured = await in_thread(_measure, draft, services_of(request).blocking_redis)
        if request.POST.get("act") == "save":
            await in_thread(
                save_workload,
                measured.workload,
                author=author,
                origin="measured",
                evidence=measured.evidence,
                reason=draft["reason"],
            )
            messages.success(request, f"The workload {measured.workload.name} is stored.")
            return redirect("dashboard:lab_workload", name=measured.workload.name)
    except DomainError as error:
        errors = {_field_of(error): f"{error.message[:1].upper()}{error.message[1:]}"}
    page = await in_thread(_page, draft, errors=errors, measured=measured)
    return await render_page(request, "dashboard/lab/workload_measure.html", page, status=400 if errors else 200)


def _measure(draft: Mapping[str, str], redis: Redis) -> Measured:
    for way in ARRIVALS_AS:
        if way == draft["arrivals_as"]:
            return measure_workload(
                pool=draft["pool"],
                tenant=draft["tenant"],
                since=_moment("since", draft["since"]),
                until=_moment("until", draft["until"]),
                name=draft["name"],
                arrivals_as=way,
                fingerprint=glimpse_fingerprint(redis, draft["pool"]),
            )
    raise InvalidValue("arrivals_as", draft["arrivals_as"], "one of " + ", ".join(ARRIVALS_AS))


def _page(
    draft: Mapping[str, str], *, errors: Mapping[str, str] | None = None, measured: Measured | None = None
) -> MeasurePage:
    return MeasurePage(
        pools=tuple(configured_pool_names()),
        draft=draft,
        errors=errors or {},
        preview=None if measured is None else _preview(measured),
    )


def _preview(measured: Measured) -> Preview:
    workload, evidence = measured.workload, measured.evidence
    return Preview(
        arrivals=arrivals_in_words(workload.arrivals),
        num_requests=evidence.num_requests,
        num_in_range=evidence.num_in_range,
        first_at=evidence.first_at,
        last_at=evidence.last_at,
        cv=evidence.arrivals.cv,
        classes=present_classes(workload),
        lengths=present_lengths(workload, evidence),
        notes=evidence.notes,
        charts=present_charts(workload, evidence),
    )


def _fresh_draft(now: datetime.datetime) -> dict[str, str]:
    """The last hour, whole minutes of UTC."""
    until = now.astimezone(datetime.UTC).replace(second=0, microsecond=0)
    since = until - datetime.timedelta(hours=_HOURS_BY_DEFAULT)
    return {
        "name": f"measured-{until:%Y-%m-%d}",
        "since": f"{since:%Y-%m-%dT%H:%M}",
        "until": f"{until:%Y-%m-%dT%H:%M}",
        "arrivals_as": "fitted",
    }


def _moment(name: str, text: str) -> datetime.datetime:
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise InvalidValue(name, text, "a time such as 2026-03-31T12:00")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _field_of(error: DomainError) -> str:
    return error.param if error.param in _FIELDS else "" if error.param != "workload" else "name"
