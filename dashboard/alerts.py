"""The pages about alerts: what is the matter now, the rules, and the form that makes and changes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from redis.exceptions import RedisError

from dashboard import alert_forms as forms
from dashboard.alert_presenters import (
    AlertRow,
    MetricChoice,
    RaisedRow,
    RuleRow,
    metric_choices,
    present_alerts,
    present_raised,
    present_rules,
)
from dashboard.pages import for_steerers, for_watchers, render_page, whole_number
from dashboard.permissions import may_steer
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue, StaleVersion
from serving.telemetry import alert_rules
from serving.telemetry.alert_log import newest_alerts
from serving.telemetry.alerts import RaisedAlert, raised_alerts
from serving.tuning.selectors import pool_names


@require_safe
@for_watchers
async def alerts(request: HttpRequest) -> HttpResponseBase:
    """What is the matter now, every rule, and the alerts of the past."""
    page = await in_thread(_read_page, await request.auser(), await _raised(request))
    return await render_page(request, "dashboard/alerts.html", page)


@require_safe
@for_watchers
async def banner(request: HttpRequest) -> HttpResponseBase:
    """What every page says of alerts that go on, in JSON: `{"alerts": [{name, pool, text}, …]}`, the oldest first;
    `{"alerts": null}` where Redis could not be asked, so that what was told last is not taken back."""
    raised = await _raised(request)
    told = None if raised is None else [{"name": one.name, "pool": one.pool, "text": one.text} for one in raised]
    return JsonResponse({"alerts": told})


@require_http_methods(["GET", "HEAD", "POST"])
@for_steerers
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form that makes a rule."""
    if request.method != "POST":
        return await render_page(request, "dashboard/alert_rule.html", await in_thread(_form_page, forms.Draft()))
    draft = forms.read_draft(request.POST)
    errors = await in_thread(_make, draft, author=await _author_of(request))
    if not errors:
        messages.success(request, "The rule is stored; the monitor watches by it within some seconds.")
        return redirect("dashboard:alerts")
    page = await in_thread(_form_page, draft, errors=errors)
    return await render_page(request, "dashboard/alert_rule.html", page, status=400)


@require_http_methods(["GET", "HEAD", "POST"])
@for_steerers
async def edit(request: HttpRequest, rule_id: int) -> HttpResponseBase:
    """The form that changes a rule; where another was faster, what was typed stays and nothing is changed."""
    rule = await in_thread(alert_rules.find_rule, rule_id)
    if request.method != "POST":
        page = await in_thread(_form_page, forms.draft_of(rule), rule_id=rule_id, revision=rule.revision)
        return await render_page(request, "dashboard/alert_rule.html", page)
    draft, based_on = forms.read_draft(request.POST), whole_number(request.POST.get("revision"))
    author = await _author_of(request)
    problem, errors, status = "", {}, 400
    try:
        await in_thread(_change, rule_id, draft, author=author, based_on=based_on)
    except StaleVersion as error:
        problem, status = error.message, 409
    except DomainError as error:
        errors = forms.what_is_wrong(draft, error)
    else:
        messages.success(request, "The rule is changed; the monitor watches by it within some seconds.")
        return redirect("dashboard:alerts")
    # What is wrong with a form goes on from what it was filled with; a conflict goes on from what is stored by now.
    revision = rule.revision if status == 409 else based_on or rule.revision
    page = await in_thread(
        _form_page, draft, rule_id=rule_id, revision=revision, errors=errors, problem=problem, rule=rule
    )
    return await render_page(request, "dashboard/alert_rule.html", page, status=status)


@require_POST
@for_steerers
async def delete(request: HttpRequest, rule_id: int) -> HttpResponseBase:
    """Delete a rule. Its alerts stay on record."""
    rule = await in_thread(alert_rules.delete_rule, rule_id, author=await _author_of(request))
    messages.success(request, f"The rule {rule.name} is deleted.")
    return redirect("dashboard:alerts")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AlertsPage:
    """What `alerts.html` shows. `raised` is None where Redis could not be asked."""

    page: str = "alerts"
    may_steer: bool
    raised: tuple[RaisedRow, ...] | None
    rules: tuple[RuleRow, ...]
    past: tuple[AlertRow, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RulePage:
    """What `alert_rule.html` shows. `rule_id` is None for a new one; `stored` is what is stored by now, where somebody
    else changed it; `hosts` are those that may be told."""

    page: str = "alerts"
    draft: forms.Draft
    rule_id: int | None = None
    revision: int | None = None
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""
    stored: str = ""
    metrics: tuple[MetricChoice, ...]
    pools: tuple[str, ...]
    hosts: tuple[str, ...]


async def _raised(request: HttpRequest) -> list[RaisedAlert] | None:
    try:
        return await raised_alerts(services_of(request).redis)
    except (RedisError, OSError):
        return None


def _read_page(user: Any, raised: list[RaisedAlert] | None) -> AlertsPage:
    return AlertsPage(
        may_steer=may_steer(user),
        raised=None if raised is None else present_raised(raised),
        rules=present_rules(alert_rules.all_rules(), raised),
        past=present_alerts(newest_alerts()),
    )


def _form_page(draft: forms.Draft, *, rule: Any = None, problem: str = "", **shown: Any) -> RulePage:
    stored = "" if rule is None or not problem else alert_rules.condition_of(rule).describe()
    known = pool_names()
    return RulePage(
        draft=draft,
        metrics=metric_choices(),
        pools=(*known, *([draft.pool] if draft.pool and draft.pool not in known else [])),
        hosts=tuple(sorted(settings.FOOTPLATE_WEBHOOK_HOSTS)),
        problem=problem,
        stored=stored,
        **shown,
    )


async def _author_of(request: HttpRequest) -> Author:
    return acting(request, (await request.auser()).get_username())


def _make(draft: forms.Draft, *, author: Author) -> dict[str, str]:
    """What is wrong, by field; nothing where the rule is stored."""
    try:
        _check_pool(draft)
        alert_rules.create_rule(draft.values(), author=author, allowed_hosts=settings.FOOTPLATE_WEBHOOK_HOSTS)
    except DomainError as error:
        return forms.what_is_wrong(draft, error)
    return {}


def _change(rule_id: int, draft: forms.Draft, *, author: Author, based_on: int | None) -> None:
    _check_pool(draft)
    alert_rules.change_rule(
        rule_id, draft.values(), author=author, allowed_hosts=settings.FOOTPLATE_WEBHOOK_HOSTS, based_on=based_on
    )


def _check_pool(draft: forms.Draft) -> None:
    known = pool_names()
    if draft.pool and draft.pool not in known:
        raise InvalidValue("pool", draft.pool, "empty (each pool), or one of " + ", ".join(known))
