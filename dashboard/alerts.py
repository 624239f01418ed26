"""The pages about alerts: what is the matter now, the rules, and the form that makes and changes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

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
from serving.contracts.errors import DomainError, InvalidValue, RuleNotFound, StaleVersion
from serving.telemetry import alert_rules
from serving.telemetry.alert_log import newest_alerts
from serving.telemetry.alerts import RaisedAlert, raised_alerts
from serving.telemetry.webhook_signing import fingerprint_of
from serving.tuning.selectors import configured_pool_names


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
    try:
        rule = await in_thread(_make, draft, author=await _author_of(request))
    except DomainError as error:
        page = await in_thread(_form_page, draft, errors=forms.what_is_wrong(draft, error))
    else:
        return await _lead_on(request, rule, "The rule is stored; the monitor watches by it within some seconds.")
    return await render_page(request, "dashboard/alert_rule.html", page, status=400)


@require_http_methods(["GET", "HEAD", "POST"])
@for_steerers
async def edit(request: HttpRequest, rule_id: int) -> HttpResponseBase:
    """The form that changes a rule; where another was faster, what was typed stays and nothing is changed."""
    try:
        rule = await in_thread(alert_rules.find_rule, rule_id)
    except RuleNotFound:
        if request.method != "POST":
            raise
        page = await in_thread(_form_page, forms.read_draft(request.POST), is_gone=True)
        return await render_page(request, "dashboard/alert_rule.html", page, status=409)
    if request.method != "POST":
        page = await in_thread(_form_page, forms.draft_of(rule), rule=rule, revision=rule.revision)
        return await render_page(request, "dashboard/alert_rule.html", page)
    draft, based_on = forms.read_draft(request.POST), whole_number(request.POST.get("revision"))
    author = await _author_of(request)
    problem, errors, status = "", {}, 400
    try:
        changed = await in_thread(_change, rule, draft, author=author, based_on=based_on)
    except StaleVersion as error:
        problem, status = error.message, 409
    except DomainError as error:
        errors = forms.what_is_wrong(draft, error)
    else:
        is_known = changed.webhook_url == rule.webhook_url
        done = "The rule is changed; the monitor watches by it within some seconds."
        return await _lead_on(request, changed, done, is_known=is_known)
    # What is wrong with a form goes on from what it was filled with; a conflict goes on from what is stored by now.
    revision = rule.revision if status == 409 else based_on or rule.revision
    page = await in_thread(_form_page, draft, rule=rule, revision=revision, errors=errors, problem=problem)
    return await render_page(request, "dashboard/alert_rule.html", page, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@for_steerers
async def renew_secret(request: HttpRequest, rule_id: int) -> HttpResponseBase:
    """Give the rule's webhook another secret, and show it this once. Who comes by a link changes nothing."""
    if request.method != "POST":
        return redirect("dashboard:alert_rule", rule_id=rule_id)
    author, based_on = await _author_of(request), request.POST.get("based_on", "")
    try:
        rule = await in_thread(alert_rules.renew_webhook_secret, rule_id, author=author, based_on=based_on)
    except (InvalidValue, StaleVersion) as error:
        messages.warning(request, f"Nothing was changed: {error.message}.")
        return redirect("dashboard:alert_rule", rule_id=rule_id)
    return await _lead_on(request, rule, "The secret is renewed: what is posted from now on is signed with it.")


@require_POST
@for_steerers
async def delete(request: HttpRequest, rule_id: int) -> HttpResponseBase:
    """Delete a rule, unless somebody changed it meanwhile. Its alerts stay on record."""
    based_on = whole_number(request.POST.get("revision"))
    try:
        author = await _author_of(request)
        rule = await in_thread(alert_rules.delete_rule, rule_id, author=author, based_on=based_on)
    except StaleVersion as error:
        messages.warning(request, f"The rule is not deleted: {error.message}.")
        return redirect("dashboard:alert_rule", rule_id=rule_id)
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
    else changed it, and `is_gone` that somebody deleted it; `hosts` are those that may be told; `fingerprint` is that
    of the secret that the stored webhook is signed with, empty where there is none."""

    page: str = "alerts"
    draft: forms.Draft
    rule_id: int | None = None
    revision: int | None = None
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""
    stored: str = ""
    is_gone: bool = False
    metrics: tuple[MetricChoice, ...]
    pools: tuple[str, ...]
    hosts: tuple[str, ...]
    fingerprint: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecretPage:
    """What `alert_secret.html` shows: the one sight of a webhook's secret, which its `repr` does not tell."""

    page: str = "alerts"
    name: str
    done: str
    host: str
    secret: str = dataclasses.field(repr=False)
    fingerprint: str


async def _raised(request: HttpRequest) -> list[RaisedAlert] | None:
    try:
        return await raised_alerts(services_of(request).redis)
    except (RedisError, OSError):
        return None


def _read_page(user: Any, raised: list[RaisedAlert] | None) -> AlertsPage:
    return AlertsPage(
        may_steer=may_steer(user),
        raised=None if raised is None else present_raised(raised),
        rules=present_rules(alert_rules.all_rules(), raised, pools=configured_pool_names()),
        past=present_alerts(newest_alerts()),
    )


def _form_page(draft: forms.Draft, *, rule: Any = None, problem: str = "", **shown: Any) -> RulePage:
    """The form, of a stored `rule` where there is one."""
    stored = "" if rule is None or not problem else alert_rules.condition_of(rule).describe()
    has_webhook = rule is not None and bool(rule.webhook_url)
    known = configured_pool_names()
    return RulePage(
        draft=draft,
        rule_id=None if rule is None else rule.pk,
        metrics=metric_choices(),
        pools=(*known, *([draft.pool] if draft.pool and draft.pool not in known else [])),
        hosts=tuple(sorted(settings.FOOTPLATE_WEBHOOK_HOSTS)),
        problem=problem,
        stored=stored,
        fingerprint=fingerprint_of(rule.webhook_salt) if has_webhook else "",
        **shown,
    )


async def _lead_on(request: HttpRequest, rule: Any, done: str, *, is_known: bool = False) -> HttpResponseBase:
    """To the alerts, or to the one sight of the webhook's secret unless that `is_known`."""
    if is_known or not rule.webhook_url:
        messages.success(request, done)
        return redirect("dashboard:alerts")
    page = SecretPage(
        name=rule.name,
        done=done,
        host=urlsplit(rule.webhook_url).netloc,
        secret=alert_rules.webhook_secret(rule),
        fingerprint=fingerprint_of(rule.webhook_salt),
    )
    return await render_page(request, "dashboard/alert_secret.html", page)


async def _author_of(request: HttpRequest) -> Author:
    return acting(request, (await request.auser()).get_username())


def _make(draft: forms.Draft, *, author: Author) -> Any:
    """The rule that was stored. Raises `DomainError` for what is wrong."""
    _check_pool(draft.pool)
    return alert_rules.create_rule(draft.values(), author=author, allowed_hosts=settings.FOOTPLATE_WEBHOOK_HOSTS)


def _change(rule: Any, draft: forms.Draft, *, author: Author, based_on: int | None) -> Any:
    if draft.pool != rule.pool:  # A rule that rests may be changed otherwise.
        _check_pool(draft.pool)
    return alert_rules.change_rule(
        rule.pk, draft.values(), author=author, allowed_hosts=settings.FOOTPLATE_WEBHOOK_HOSTS, based_on=based_on
    )


def _check_pool(name: str) -> None:
    known = configured_pool_names()
    if name and name not in known:
        raise InvalidValue("pool", name, "empty (each pool), or one of " + ", ".join(known))
