"""The pages of a tenant's keys. A key's text is in the answer to the form that made it, and nowhere else: in no
address, message, session or log."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from dashboard import tenant_forms as forms
from dashboard import tenant_quotas
from dashboard.pages import render_page, whole_number
from dashboard.permissions import may_administer
from dashboard.tenant_key_presenters import KeyRow, ScopeChoice, present_keys, present_scopes
from dashboard.tenant_pages import Actor, TenantHeading, actor_of, for_administrators, for_readers, heading_of
from dashboard.tenant_presenters import QuotaField, present_empty_fields
from dashboard.threads import in_thread
from serving.admission import selectors, services
from serving.admission.keys import OFFERED_SCOPES, KeyText
from serving.contracts.errors import InvalidValue
from serving.contracts.texts import without_secrets


@require_http_methods(["GET", "HEAD", "POST"])
@for_readers
async def keys(request: HttpRequest, tenant_id: int) -> HttpResponseBase:
    """A tenant's keys. Posted to, it makes one, whose text is shown in the answer this once."""
    user = await request.auser()
    if request.method != "POST":
        page = await in_thread(_read_keys, tenant_id, user=user)
        return await render_page(request, "dashboard/tenant_keys.html", page)
    made = await in_thread(_make, tenant_id, request.POST, await actor_of(request))
    if isinstance(made, KeyMadePage):
        return await render_page(request, "dashboard/tenant_key_made.html", made)
    page = await in_thread(_read_keys, tenant_id, user=user, form=made)
    return await render_page(request, "dashboard/tenant_keys.html", page, status=400)


@require_http_methods(["GET", "HEAD", "POST"])
@for_readers
async def key(request: HttpRequest, tenant_id: int, prefix: str) -> HttpResponseBase:
    """One key with its own quotas and their versions. Posted to, it changes those."""
    if request.method != "POST":
        return await _show_key(request, tenant_id, prefix)
    refused = await in_thread(tenant_quotas.change, tenant_id, request.POST, await actor_of(request), key_prefix=prefix)
    return await _answer(
        request, tenant_id, prefix, refused, done="The key's quotas are stored, and count for the next request."
    )


@require_http_methods(["GET", "HEAD", "POST"])
@for_administrators
async def roll_back(request: HttpRequest, tenant_id: int, prefix: str, number: int) -> HttpResponseBase:
    """As `tenant_quotas.roll_back`, of a key's own quotas."""
    if request.method != "POST":
        return redirect("dashboard:tenant_key", tenant_id=tenant_id, prefix=prefix)
    refused = await in_thread(
        tenant_quotas.roll_back_to,
        tenant_id,
        number,
        request.POST,
        await actor_of(request),
        key_prefix=prefix,
    )
    return await _answer(request, tenant_id, prefix, refused, done=f"Rolled back to version {number}.")


@require_http_methods(["GET", "HEAD", "POST"])
@for_administrators
async def revoke(request: HttpRequest, tenant_id: int, prefix: str) -> HttpResponseBase:
    """Ask whether a key shall end for good and, posted to, end it."""
    if request.method != "POST":
        page = await in_thread(_read_revoking, tenant_id, prefix)
        return await render_page(request, "dashboard/tenant_key_revoke.html", page)
    actor, reason, asked_at = await actor_of(request), request.POST.get("reason", ""), timezone.now()
    try:
        ended = await in_thread(
            services.revoke_key, tenant_id, prefix, author=actor.author, redis=actor.redis, reason=reason
        )
    except InvalidValue as error:
        page = await in_thread(_read_revoking, tenant_id, prefix, reason=reason, problem=error.message)
        return await render_page(request, "dashboard/tenant_key_revoke.html", page, status=400)
    if ended.revoked_at is not None and ended.revoked_at < asked_at:
        messages.warning(
            request, f"The key fp-{prefix}-… was revoked before, at {ended.revoked_at:%Y-%m-%d %H:%M} UTC: it stays so."
        )
    else:
        messages.success(request, f"The key fp-{prefix}-… is revoked: it opens no door any more.")
    return redirect("dashboard:tenant_keys", tenant_id=tenant_id)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyForm:
    """What the form that makes a key is filled with."""

    label: str = ""
    scopes: Sequence[str] = ("generate",)
    expires_at: str = ""
    typed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reason: str = ""
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeysPage:
    """What `tenant_keys.html` shows."""

    page: str = "tenants"
    tab: str = "keys"
    tenant: TenantHeading
    may_administer: bool
    rows: tuple[KeyRow, ...]
    form: KeyForm
    scopes: tuple[ScopeChoice, ...]
    fields: tuple[QuotaField, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyMadePage:
    """What `tenant_key_made.html` shows: the one sight of a key. Its `repr` does not tell the text."""

    page: str = "tenants"
    tab: str = "keys"
    tenant: TenantHeading
    key: KeyText
    label: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """What `tenant_key.html` shows."""

    page: str = "tenants"
    tab: str = "keys"
    tenant: TenantHeading
    may_administer: bool
    key: KeyRow
    section: tenant_quotas.QuotasSection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RevokingPage:
    """What `tenant_key_revoke.html` shows."""

    page: str = "tenants"
    tab: str = "keys"
    tenant: TenantHeading
    key: KeyRow
    reason: str
    problem: str


async def _show_key(
    request: HttpRequest, tenant_id: int, prefix: str, *, refused: tenant_quotas.Refused | None = None
) -> HttpResponseBase:
    page = await in_thread(
        _read_key,
        tenant_id,
        prefix,
        user=await request.auser(),
        actor=await actor_of(request),
        before=whole_number(request.GET.get("before")),
        refused=refused,
    )
    return await render_page(request, "dashboard/tenant_key.html", page, status=refused.status if refused else 200)


async def _answer(
    request: HttpRequest, tenant_id: int, prefix: str, refused: tenant_quotas.Refused | None, *, done: str
) -> HttpResponseBase:
    if refused is not None:
        return await _show_key(request, tenant_id, prefix, refused=refused)
    messages.success(request, done)
    return redirect("dashboard:tenant_key", tenant_id=tenant_id, prefix=prefix)


def _make(tenant_id: int, post: forms.Posted, actor: Actor) -> KeyMadePage | KeyForm:
    """The new key, or the form again with what is wrong."""
    label, reason = post.get("label", "").strip(), post.get("reason", "")
    scopes, expires_at, typed = post.getlist("scopes"), post.get("expires_at", "").strip(), forms.read_quotas(post)
    quotas = forms.quota_values(typed)
    errors = {**forms.quota_errors(quotas), **forms.reason_errors(reason)}
    if not errors:
        try:
            _, made = services.add_key(
                tenant_id,
                author=actor.author,
                redis=actor.redis,
                scopes=scopes,
                label=label,
                expires_at=_moment(expires_at),
                quotas=quotas,
                reason=reason,
            )
            return KeyMadePage(tenant=heading_of(selectors.find_tenant(tenant_id)), key=made, label=label)
        except InvalidValue as error:
            errors = {error.field: error.message}
    return KeyForm(
        label=without_secrets(label),
        scopes=scopes,
        expires_at=without_secrets(expires_at),
        typed={name: without_secrets(text) for name, text in typed.items()},
        reason=without_secrets(reason),
        errors=errors,
    )


def _read_keys(tenant_id: int, *, user: Any, form: KeyForm | None = None) -> KeysPage:
    tenant = selectors.find_tenant(tenant_id)
    found, form = selectors.keys_of(tenant), form or KeyForm()
    in_force = selectors.current_quotas_by_owner(found)
    return KeysPage(
        tenant=heading_of(tenant),
        may_administer=may_administer(user),
        rows=present_keys(found, {pk: quotas for pk, (_, quotas) in in_force.items()}, now=timezone.now()),
        form=form,
        scopes=present_scopes(OFFERED_SCOPES, form.scopes),
        fields=present_empty_fields(form.typed, form.errors),
    )


def _read_key(
    tenant_id: int,
    prefix: str,
    *,
    user: Any,
    actor: Actor,
    before: int | None,
    refused: tenant_quotas.Refused | None,
) -> KeyPage:
    found = selectors.find_key(tenant_id, prefix)
    url = reverse("dashboard:tenant_key", kwargs={"tenant_id": tenant_id, "prefix": prefix})
    return KeyPage(
        tenant=heading_of(found.tenant),
        may_administer=may_administer(user),
        key=_row_of(found),
        section=tenant_quotas.read_section(
            tenant_id, actor=actor, url=url, key_prefix=prefix, before=before, refused=refused
        ),
    )


def _read_revoking(tenant_id: int, prefix: str, *, reason: str = "", problem: str = "") -> RevokingPage:
    found = selectors.find_key(tenant_id, prefix)
    return RevokingPage(
        tenant=heading_of(found.tenant), key=_row_of(found), reason=without_secrets(reason), problem=problem
    )


def _row_of(found: Any) -> KeyRow:
    _, quotas = selectors.current_quotas(found)
    (row,) = present_keys([found], {found.pk: quotas}, now=timezone.now())
    return row


def _moment(text: str) -> datetime.datetime | None:
    """A moment of UTC where the text names no offset; None for an empty text. Raises `InvalidValue`."""
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue("expires_at", text, "a moment, as 2030-01-31T12:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
