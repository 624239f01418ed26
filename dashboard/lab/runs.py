"""The pages about runs: the list, one as it plays and when it is over, its files, and ordering it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe
from redis import Redis

from dashboard.lab.runs_filter import AskedRuns, present_choices, read_asked_runs
from dashboard.lab.runs_presenters import RunPanel, RunRow, present_run, present_state
from dashboard.lab.runs_presenters import present_row as present_run_row
from dashboard.lab.staleness import stale_ids
from dashboard.pages import only, render_page, whole_number
from dashboard.permissions import may_experiment, may_view_lab
from dashboard.requests_presenters import Option
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.errors import DomainError, InvalidValue
from serving.lab.fingerprints import decode_fingerprint, differences_now
from serving.lab.reports.report import Report, report_html, report_json
from serving.lab.reports.tables import moments_csv, requests_csv
from serving.lab.runs.again import order_run_again
from serving.lab.runs.selectors import PAGE_SIZE, RunView, find_run, list_runs, outcomes_of, run_choices
from serving.lab.runs.services import stop_run
from serving.lab.workloads.codec import decode_workload

for_viewers = only(may_view_lab)

_TYPES = {
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "requests.csv": "text/csv; charset=utf-8",
    "moments.csv": "text/csv; charset=utf-8",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunsPage:
    """What `runs.html` shows. `older_url` leads to the next page of the same list, and is empty on the last."""

    page: str = "lab"
    lab_page: str = "runs"
    rows: tuple[RunRow, ...]
    stale_ids: frozenset[int]
    older_url: str
    typed: Mapping[str, str]
    errors: Mapping[str, str]
    options: Mapping[str, Sequence[Option]]
    is_filtered: bool
    may_experiment: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """What `run.html` shows."""

    page: str = "lab"
    lab_page: str = "runs"
    run: RunPanel
    stale: tuple[str, ...]
    may_experiment: bool


@require_safe
@for_viewers
async def runs(request: HttpRequest) -> HttpResponseBase:
    """The runs that the query asks for (see `dashboard.lab.runs_filter`), the newest first."""
    asked = read_asked_runs(request.GET)
    page = await in_thread(
        _read_list,
        asked,
        whole_number(request.GET.get("before")),
        await request.auser(),
        services_of(request).blocking_redis,
    )
    return await render_page(request, "dashboard/lab/runs.html", page, status=400 if page.errors else 200)


@require_safe
@for_viewers
async def run(request: HttpRequest, run_id: int) -> HttpResponseBase:
    """One run: how far it is, or what came of it."""
    found = await _find(run_id)
    page = await in_thread(_read_run, found, await request.auser(), services_of(request).blocking_redis)
    return await render_page(request, "dashboard/lab/run.html", page)


@require_safe
@for_viewers
async def state(request: HttpRequest, run_id: int) -> HttpResponseBase:
    """How far a run is, as `{state, is_over, progress, plots}`."""
    found = await _find(run_id)
    return HttpResponse(msgspec.json.encode(present_state(found)), content_type="application/json")


@require_POST
@only(may_experiment)
async def stop(request: HttpRequest, run_id: int) -> HttpResponseBase:
    """End a run before its time."""
    user = await request.auser()
    try:
        await in_thread(stop_run, run_id, author=acting(request, user.get_username()))
    except InvalidValue as error:
        messages.error(request, f"Nothing was stopped: {error.message}.")
    else:
        messages.success(request, "The run ends. A run cannot be resumed: what was sent by then is its result.")
    return redirect("dashboard:lab_run", run_id=run_id)


@require_POST
@only(may_experiment)
async def again(request: HttpRequest, run_id: int) -> HttpResponseBase:
    """Order the same requests to the same server once more."""
    author = acting(request, (await request.auser()).get_username())
    await _find(run_id)
    try:
        made = await in_thread(order_run_again, run_id, author=author)
    except DomainError as error:
        messages.error(request, f"Nothing was ordered: {error.message}.")
        return redirect("dashboard:lab_run", run_id=run_id)
    messages.success(request, f"The run waits for its turn: the very requests of run {run_id}.")
    return redirect("dashboard:lab_run", run_id=made.pk)


@require_safe
@for_viewers
async def download(request: HttpRequest, run_id: int, kind: str) -> HttpResponseBase:
    """A run as a file: `json`, `html`, `requests.csv` or `moments.csv`."""
    found = await _find(run_id)
    if kind not in _TYPES or found.summary is None:
        raise Http404
    content = await in_thread(_file_of, found, kind)
    name = f"run-{run_id}{'-' if '.' in kind else '.'}{kind}"
    response = HttpResponse(content, content_type=_TYPES[kind])
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _read_list(asked: AskedRuns, before: int | None, user: Any, redis: Redis) -> RunsPage:
    found = [] if asked.errors else list_runs(asked.filter, before=before, limit=PAGE_SIZE + 1)
    shown = found[:PAGE_SIZE]
    return RunsPage(
        rows=tuple(present_run_row(each) for each in shown),
        stale_ids=stale_ids(shown, redis),
        older_url=asked.query(before=str(shown[-1].id)) if len(found) > PAGE_SIZE else "",
        typed=asked.typed,
        errors=asked.errors,
        options=present_choices(asked, run_choices()),
        is_filtered=asked.is_filtered,
        may_experiment=may_experiment(user),
    )


def _read_run(found: RunView, user: Any, redis: Any) -> RunPage:
    stale: tuple[str, ...] = ()
    if found.pool and found.is_over:
        stale = differences_now(found.fingerprint, redis=redis, pool=found.pool)
    return RunPage(run=present_run(found), stale=stale, may_experiment=may_experiment(user))


async def _find(run_id: int) -> RunView:
    found = await in_thread(find_run, run_id)
    if found is None:
        raise Http404
    return found


def _file_of(found: RunView, kind: str) -> str:
    assert found.summary is not None, "a run without figures has no files"
    if kind == "requests.csv":
        return requests_csv(outcomes_of(found.id))
    if kind == "moments.csv":
        return moments_csv(found.summary.moments)
    report = Report(
        title=f"Run {found.id}: {found.title}",
        workload=decode_workload(found.workload),
        summary=found.summary,
        context=dict(_context(found)),
    )
    if kind == "json":
        return report_json(report)
    return report_html(report, chart_library=settings.BASE_DIR / "static" / "vendor" / "chart.umd.js")


def _context(found: RunView) -> Iterator[tuple[str, str]]:
    yield "Server", str(found.target.get("url", ""))
    if found.pool:
        yield "Pool", found.pool
        yield "Tunables", f"version {found.tunables_version}"
    yield "Model", str(found.target.get("model", ""))
    if found.started_at is not None:
        yield "Begun", f"{found.started_at:%Y-%m-%d %H:%M:%S} UTC"
    yield "State", f"{found.state}{f': {found.error}' if found.error else ''}"
    fingerprint = decode_fingerprint(found.fingerprint)
    if fingerprint.num_engines:
        yield "Engines", f"{fingerprint.num_engines} x {fingerprint.device}, {fingerprint.dtype}, {fingerprint.backend}"
