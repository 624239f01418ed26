"""The pages about a tenant: what it is and how it stands, and the forms that make and change one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import tenant_forms as forms
from dashboard.pages import render_page
from dashboard.permissions import may_administer, may_audit
from dashboard.tenant_pages import Actor, TenantHeading, actor_of, for_administrators, for_readers, heading_of
from dashboard.tenant_presenters import (
    AuditRow,
    PoolChoice,
    QuotaBar,
    QuotaField,
    pools_in_words,
    present_audit,
    present_empty_fields,
    present_pools,
)
from dashboard.tenant_reading import read_bars
from dashboard.threads import in_thread
from serving.admission import selectors, tenants
from serving.audit.selectors import events_of_tenant
from serving.contracts.errors import DomainError, InvalidValue, StaleVersion
from serving.contracts.texts import without_secrets
from serving.tuning.selectors import configured_pool_names, pool_names

_NUM_ENTRIES = 50


@require_safe
@for_readers
async def overview(request: HttpRequest, tenant_id: int) -> HttpResponseBase:
    """One tenant: its attributes, what it uses of its quotas now, and what was last changed of it."""
    actor = await actor_of(request)
    page = await in_thread(_read_overview, tenant_id, user=await request.auser(), actor=actor)
    return await render_page(request, "dashboard/tenant.html", page)


@require_http_methods(["GET", "HEAD", "POST"])
@for_administrators
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form that makes a tenant."""
    if request.method != "POST":
        page = await in_thread(_new_page, forms.Draft(), {})
        return await render_page(request, "dashboard/tenant_new.html", page)
    made = await in_thread(_make, request.POST, await actor_of(request))
    if isinstance(made, int):
        messages.success(request, "The tenant is made. It needs a key to be of use.")
        return redirect("dashboard:tenant_keys", tenant_id=made)
    return await render_page(request, "dashboard/tenant_new.html", made, status=400)


@require_http_methods(["GET", "HEAD", "POST"])
@for_administrators
async def edit(request: HttpRequest, tenant_id: int) -> HttpResponseBase:
    """The form that changes a tenant's attributes. What others changed meanwhile stays, where it was not typed over;
    where it was, both are shown and nothing is changed."""
    if request.method != "POST":
        page = await in_thread(_edit_page, tenant_id)
        return await render_page(request, "dashboard/tenant_edit.html", page)
    changed = await in_thread(_change, tenant_id, request.POST, await actor_of(request))
    if isinstance(changed, EditPage):
        status = 409 if changed.is_stale else 400
        return await render_page(request, "dashboard/tenant_edit.html", changed, status=status)
    messages.success(
        request, "The change is stored, and counts for the next request." if changed else "Nothing changed."
    )
    return redirect("dashboard:tenant", tenant_id=tenant_id)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage:
    """What `tenant.html` shows. `audit` is None for those who may not read it."""

    page: str = "tenants"
    tab: str = "overview"
    tenant: TenantHeading
    may_administer: bool
    attributes: Mapping[str, Any]
    bars: tuple[QuotaBar, ...]
    audit: tuple[AuditRow, ...] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewPage:
    """What `tenant_new.html` shows. `fields` are the quotas'; `errors` are by attribute."""

    page: str = "tenants"
    draft: forms.Draft
    pool_choices: tuple[PoolChoice, ...]
    fields: tuple[QuotaField, ...]
    reason: str
    errors: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EditPage:
    """What `tenant_edit.html` shows. Where it `is_stale`, `newer` is what others changed meanwhile; `problem` is what
    is wrong with no field of its own."""

    page: str = "tenants"
    tab: str = "edit"
    tenant: TenantHeading
    may_administer: bool = True
    draft: forms.Draft
    pool_choices: tuple[PoolChoice, ...]
    seen: str
    reason: str = ""
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""
    is_stale: bool = False
    newer: tuple[AuditRow, ...] = ()


def _read_overview(tenant_id: int, *, user: Any, actor: Actor) -> OverviewPage:
    tenant = selectors.find_tenant(tenant_id)
    _, quotas = selectors.current_quotas(tenant)
    attributes = {
        "weight": f"{tenant.weight:g}",
        "most_urgent": tenant.most_urgent,
        "pools": pools_in_words(tenant.pools),
        "keeps_text": tenant.keeps_text,
        "created_at": tenant.created_at,
    }
    events = events_of_tenant(tenant.pk, limit=_NUM_ENTRIES) if may_audit(user) else None
    return OverviewPage(
        tenant=heading_of(tenant),
        may_administer=may_administer(user),
        attributes=attributes,
        bars=read_bars(f"tenant:{tenant.pk}", quotas, redis=actor.redis),
        audit=None if events is None else present_audit(events),
    )


def _make(post: forms.Posted, actor: Actor) -> int | NewPage:
    """The new tenant's id, or the form again with what is wrong."""
    draft, typed, reason = forms.read_draft(post), forms.read_quotas(post), post.get("reason", "")
    values, quotas = draft.values(), forms.quota_values(typed)
    errors = {**forms.attribute_errors(values), **forms.quota_errors(quotas), **forms.reason_errors(reason)}
    errors |= _pool_errors(values, errors)
    if not errors:
        try:
            name = values.pop("name")
            made = tenants.create_tenant(
                name, author=actor.author, redis=actor.redis, quotas=quotas, reason=reason, **values
            )
            return int(made.pk)
        except DomainError as error:
            errors = {error.param or "name": error.message}
    return _new_page(forms.without_keys(draft), errors, typed=typed, reason=reason)


def _new_page(
    draft: forms.Draft, errors: Mapping[str, str], *, typed: Mapping[str, str] | None = None, reason: str = ""
) -> NewPage:
    return NewPage(
        draft=draft,
        pool_choices=present_pools(draft.ranks, configured_pool_names()),
        fields=present_empty_fields({name: without_secrets(text) for name, text in (typed or {}).items()}, errors),
        reason=without_secrets(reason),
        errors=errors,
    )


def _edit_page(tenant_id: int, draft: forms.Draft | None = None, **shown: Any) -> EditPage:
    tenant = selectors.find_tenant(tenant_id)
    draft = forms.without_keys(draft or forms.draft_of(tenant))
    return EditPage(
        tenant=heading_of(tenant),
        draft=draft,
        pool_choices=present_pools(draft.ranks, configured_pool_names()),
        **{"seen": forms.write_seen(tenant), **shown},
    )


def _change(tenant_id: int, post: forms.Posted, actor: Actor) -> bool | EditPage:
    """Whether anything had to be changed, or the form again with what is wrong."""
    tenant = selectors.find_tenant(tenant_id)
    draft, reason = forms.read_draft(post), post.get("reason", "")
    typed: dict[str, Any] = {"draft": draft, "reason": without_secrets(reason)}
    try:
        seen = forms.read_seen(post, tenant)
    except DomainError as error:
        return _edit_page(tenant_id, **typed, problem=error.message)
    changes = {field: value for field, value in draft.values().items() if value != seen[field]}
    errors = {**forms.attribute_errors(changes), **forms.reason_errors(reason)}
    errors |= _pool_errors(changes, errors)
    # What is wrong with a form says nothing of what others did: it goes on from what it was filled with.
    as_before: dict[str, Any] = {"seen": post.get("seen", "")}
    if errors:
        return _edit_page(tenant_id, **typed, **as_before, errors=errors)
    try:
        tenants.change_tenant(tenant_id, changes, author=actor.author, redis=actor.redis, reason=reason, seen=seen)
    except StaleVersion as error:
        return _conflict_page(tenant_id, changes, reason=reason, problem=error.message)
    except DomainError as error:
        return _edit_page(tenant_id, **typed, **as_before, errors={error.param or "name": error.message})
    return bool(changes)


def _conflict_page(tenant_id: int, changes: Mapping[str, Any], *, reason: str, problem: str) -> EditPage:
    """What was typed, over what is stored by now: to store it again is to store it on top."""
    tenant = selectors.find_tenant(tenant_id)
    events = events_of_tenant(tenant.pk, limit=_NUM_ENTRIES)
    newest = present_audit([event for event in events if not changes.keys().isdisjoint(event.changes)][:1])
    draft = forms.draft_of_values({**forms.attributes_of(tenant), **changes})
    return _edit_page(tenant_id, draft, reason=without_secrets(reason), problem=problem, is_stale=True, newer=newest)


def _pool_errors(values: Mapping[str, Any], errors: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with pools that a tenant could have, if there were such."""
    if "pools" in errors or not values.get("pools"):
        return {}
    known = pool_names()
    gone = [name for name in values["pools"] if name not in known]
    bounds = f"names of pools, of which there are: {', '.join(known)}"
    return {"pools": InvalidValue("pools", gone, bounds).message} if gone else {}
