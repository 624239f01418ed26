"""What a sweep proposes before it is applied: a change with its reason and guardrail filled in, which an operator
confirms. Works without scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods
from redis import Redis

from dashboard.pages import PoolHeading, heading_of, only, render_page, whole_number
from dashboard.permissions import may_steer, may_view_lab
from dashboard.presenters import ChangeRow, VersionRow, present_changes
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from dashboard.tuning_history import read_newer
from dashboard.tuning_reading import envelope_among, ids_taking_work, read_engines
from dashboard.tuning_terms import TermsForm, read_terms
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound, StaleVersion
from serving.lab.experiments.sweep_selectors import Sweep, find_sweep
from serving.tuning import selectors, services
from serving.tuning.conflicts import Conflict, conflicts_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPage:
    """What `sweep_apply.html` shows. `changes` are against the version `in_force`, which may be another than the sweep
    began on; `problem` is a refusal, and `newer` the changes that it is about."""

    page: str = "lab"
    lab_page: str = "sweeps"
    sweep_id: int
    pool: PoolHeading
    in_force: int
    changes: tuple[ChangeRow, ...]
    conflicts: tuple[Conflict, ...]
    reasons: tuple[str, ...]
    is_simulated: bool
    terms: TermsForm
    reason: str
    problem: str | None = None
    newer: tuple[VersionRow, ...] = ()


@require_http_methods(["GET", "HEAD", "POST"])
@only(may_view_lab, to_post=may_steer)
async def apply(request: HttpRequest, sweep_id: int) -> HttpResponseBase:
    """What the proposal would change of the values in force; posted, that change."""
    redis = services_of(request).blocking_redis
    if request.method != "POST":
        page = await in_thread(_read, sweep_id, redis)
        return await render_page(request, "dashboard/lab/sweep_apply.html", page)
    author, based_on = (
        acting(request, (await request.auser()).get_username()),
        whole_number(request.POST.get("based_on")),
    )
    try:
        pool, version = await in_thread(_store, sweep_id, request.POST, based_on, author, redis)
    except PoolNotFound:
        raise
    except DomainError as error:
        page = await in_thread(_read_refused, sweep_id, request.POST, error, based_on, redis)
        status = 409 if error.code in ("stale_version", "canary_running") else 400
        return await render_page(request, "dashboard/lab/sweep_apply.html", page, status=status)
    messages.success(request, f"Sweep {sweep_id}: version {version} is stored.")
    return redirect("dashboard:tuning", pool=pool)


def _proposing(sweep_id: int) -> tuple[Sweep, dict[str, Any]]:
    """The sweep, and the values that it proposes; 404 where it proposes none."""
    found = find_sweep(min(sweep_id, 2**63 - 1))
    if found is None or found.result is None or not found.result.changes:
        raise Http404("there is no sweep that proposes a change by this number")
    return found, {name: change[1] for name, change in found.result.changes.items()}


def _read(sweep_id: int, redis: Redis) -> ApplyPage:
    found, proposed = _proposing(sweep_id)
    current = selectors.current_tunables(found.pool)
    wanted = current.tunables.changed(proposed)
    engines = read_engines(redis, found.pool)
    return ApplyPage(
        sweep_id=found.id,
        pool=heading_of(selectors.find_pool(found.pool)),
        in_force=current.version,
        changes=present_changes(wanted.differences(current.tunables)),
        conflicts=tuple(conflicts_of(wanted, envelope_among(engines))),
        reasons=tuple(leg.proposal.reason for leg in found.legs if leg.proposal is not None and leg.name in proposed),
        is_simulated=found.result is not None and found.result.is_simulated,
        terms=_terms(found, ids_taking_work(engines)),
        reason=f"sweep {found.id}: {found.title}",
    )


def _terms(found: Sweep, engines: tuple[str, ...] | None) -> TermsForm:
    """A guardrail on the latency that the proposal was judged by, at its SLO."""
    leg = next((leg for leg in reversed(found.legs) if leg.slo_ms is not None), None)
    if leg is None:
        return TermsForm(engines=engines)
    interval = leg.latency.rpartition(" ")[2]
    return TermsForm(is_guarded=True, metric=f"{interval}_p95", bound=f"{leg.slo_ms:g}", engines=engines)


def _read_refused(
    sweep_id: int, form: Mapping[str, str], error: DomainError, based_on: int | None, redis: Redis
) -> ApplyPage:
    """The page again with what was typed."""
    page = _read(sweep_id, redis)
    is_late = isinstance(error, StaleVersion) and based_on is not None
    return dataclasses.replace(
        page,
        terms=read_terms(form, engines=page.terms.engines),
        reason=form.get("reason", ""),
        problem=error.message,
        newer=read_newer(page.pool.name, based_on) if is_late and based_on is not None else (),
    )


def _store(
    sweep_id: int, form: Mapping[str, str], based_on: int | None, author: Author, redis: Redis
) -> tuple[str, int]:
    """The pool, and the number of the version that was stored. Raises what `services.change` does."""
    found, proposed = _proposing(sweep_id)
    if based_on is None:
        raise InvalidValue("based_on", form.get("based_on"), "the number of the version in force")
    terms = read_terms(form, engines=None)
    version = services.change(
        found.pool,
        proposed,
        reason=form.get("reason", ""),
        author=author,
        redis=redis,
        based_on=based_on,
        guardrail=terms.guardrail(),
        canary=terms.is_canary,
        canary_engine=terms.engine or None,
    )
    return found.pool, int(version.number)
