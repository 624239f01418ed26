"""The pages of a tenant's quotas: what is used of them now, the form that changes them, and their versions. A key's own
quotas are changed and rolled back here too, and shown with the key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard import tenant_forms as forms
from dashboard.pages import render_page, whole_number
from dashboard.permissions import may_administer
from dashboard.tenant_pages import Actor, TenantHeading, actor_of, for_administrators, for_readers, heading_of
from dashboard.tenant_presenters import QuotaField, QuotaVersionRow, present_fields, present_versions
from dashboard.tenant_reading import read_bars
from dashboard.threads import in_thread
from serving.admission import selectors
from serving.admission.quotas import change_quotas, roll_back_quotas
from serving.contracts.errors import DomainError, InvalidValue, StaleVersion
from serving.contracts.quotas import quota_names
from serving.contracts.texts import without_secrets

PAGE_SIZE = 20
_LARGEST_NUMBER = 2**31 - 1


@require_http_methods(["GET", "HEAD", "POST"])
@for_readers
async def quotas(request: HttpRequest, tenant_id: int) -> HttpResponseBase:
    """A tenant's quotas and their versions, newest first: `?before=` is the number that those end below. Posted to, it
    changes them, unless other quotas are in force than the form was filled from."""
    actor = await actor_of(request)
    if request.method != "POST":
        before = whole_number(request.GET.get("before"))
        page = await in_thread(_read_page, tenant_id, user=await request.auser(), actor=actor, before=before)
        return await render_page(request, "dashboard/tenant_quotas.html", page)
    refused = await in_thread(change, tenant_id, request.POST, actor)
    return await _answer(request, tenant_id, refused, done="The quotas are stored, and count for the next request.")


@require_http_methods(["GET", "HEAD", "POST"])
@for_administrators
async def roll_back(request: HttpRequest, tenant_id: int, number: int) -> HttpResponseBase:
    """Make an older version's quotas those in force; 0 is what was before the first.

    Who comes by a link, as after signing in again, is led back to the quotas: nothing is done but by the button.
    """
    if request.method != "POST":
        return redirect("dashboard:tenant_quotas", tenant_id=tenant_id)
    refused = await in_thread(roll_back_to, tenant_id, number, request.POST, await actor_of(request))
    return await _answer(request, tenant_id, refused, done=f"Rolled back to version {number}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Quotas that were not stored, and why: as typed, over the version `based_on`. Where that `is_stale`, `newer` are
    the versions that others stored meanwhile."""

    typed: Mapping[str, str] | None = None
    based_on: int | None = None
    reason: str = ""
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""
    is_stale: bool = False
    newer: tuple[QuotaVersionRow, ...] = ()

    @property
    def status(self) -> int:
        """HTTP's."""
        return 409 if self.is_stale else 400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuotasSection:
    """What is shown of someone's quotas. `action` takes the form and, with a version's number and `/roll-back` after
    it, rolls back to that."""

    fields: tuple[QuotaField, ...]
    based_on: int
    in_force: int
    rows: tuple[QuotaVersionRow, ...]
    action: str
    older_url: str | None
    newest_url: str | None
    refused: Refused


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuotasPage:
    """What `tenant_quotas.html` shows."""

    page: str = "tenants"
    tab: str = "quotas"
    tenant: TenantHeading
    may_administer: bool
    section: QuotasSection


def change(tenant_id: int, post: forms.Posted, actor: Actor, *, key_prefix: str | None = None) -> Refused | None:
    """Store what was typed, of a tenant or its key; None where that is done. Blocking."""
    typed, reason = forms.read_quotas(post), post.get("reason", "")
    based_on = whole_number(post.get("based_on", ""))
    shown = {name: without_secrets(text) for name, text in typed.items()}
    refused = Refused(typed=shown, based_on=based_on, reason=without_secrets(reason))
    owner = _owner(tenant_id, key_prefix)
    before = None if based_on is None else _typed_at(owner, based_on)
    if based_on is None or before is None:
        problem = InvalidValue("based_on", based_on, "the number of a stored version of the quotas").message
        return dataclasses.replace(refused, problem=problem)
    changed = {name: text for name, text in typed.items() if text != before[name]}
    values = forms.quota_values(changed)
    errors = {**forms.quota_errors(values), **forms.reason_errors(reason)}
    if errors:
        return dataclasses.replace(refused, errors=errors)
    try:
        change_quotas(
            tenant_id,
            values,
            author=actor.author,
            redis=actor.redis,
            key_prefix=key_prefix,
            reason=reason,
            based_on=based_on,
        )
    except StaleVersion as error:
        return _stale(owner, refused, changed=changed, problem=error.message)
    except DomainError as error:
        return dataclasses.replace(refused, problem=error.message)
    return None


def roll_back_to(
    tenant_id: int, number: int, post: forms.Posted, actor: Actor, *, key_prefix: str | None = None
) -> Refused | None:
    """Roll the quotas of a tenant or its key back; None where that is done. Blocking."""
    based_on = whole_number(post.get("based_on", ""))
    owner = _owner(tenant_id, key_prefix)
    try:
        if based_on is None:
            raise InvalidValue("based_on", based_on, "the number of the version in force")
        roll_back_quotas(
            tenant_id,
            min(number, _LARGEST_NUMBER),
            author=actor.author,
            redis=actor.redis,
            key_prefix=key_prefix,
            reason=post.get("reason", ""),
            based_on=based_on,
        )
    except StaleVersion as error:
        return _stale(owner, Refused(based_on=based_on), changed={}, problem=error.message)
    except DomainError as error:
        return Refused(problem=error.message)
    return None


def read_section(
    tenant_id: int, *, actor: Actor, url: str, key_prefix: str | None, before: int | None, refused: Refused | None
) -> QuotasSection:
    """The quotas of a tenant or its key, with the form filled as it was refused. Blocking."""
    owner = _owner(tenant_id, key_prefix)
    refused = refused or Refused()
    number, in_force = selectors.current_quotas(owner)
    found = selectors.quota_versions(owner, before=before, limit=PAGE_SIZE + 1)
    subject = f"tenant:{tenant_id}" if key_prefix is None else f"key:{key_prefix}"
    typed = {**forms.typed_quotas(in_force), **(refused.typed or {})}
    return QuotasSection(
        fields=present_fields(read_bars(subject, in_force, redis=actor.redis), typed, refused.errors),
        # What others stored is looked at before it is stored over; else the form goes on from what it was filled with.
        based_on=number if refused.is_stale or refused.based_on is None else refused.based_on,
        in_force=number,
        rows=present_versions(found[:PAGE_SIZE], in_force=number),
        action=url,
        older_url=f"{url}?before={found[PAGE_SIZE - 1].number}" if len(found) > PAGE_SIZE else None,
        newest_url=url if before is not None and before <= number else None,
        refused=refused,
    )


async def _answer(request: HttpRequest, tenant_id: int, refused: Refused | None, *, done: str) -> HttpResponseBase:
    if refused is None:
        messages.success(request, done)
        return redirect("dashboard:tenant_quotas", tenant_id=tenant_id)
    actor, user = await actor_of(request), await request.auser()
    page = await in_thread(_read_page, tenant_id, user=user, actor=actor, refused=refused)
    return await render_page(request, "dashboard/tenant_quotas.html", page, status=refused.status)


def _read_page(
    tenant_id: int, *, user: Any, actor: Actor, before: int | None = None, refused: Refused | None = None
) -> QuotasPage:
    tenant = selectors.find_tenant(tenant_id)
    url = reverse("dashboard:tenant_quotas", kwargs={"tenant_id": tenant.pk})
    section = read_section(tenant.pk, actor=actor, url=url, key_prefix=None, before=before, refused=refused)
    return QuotasPage(tenant=heading_of(tenant), may_administer=may_administer(user), section=section)


def _stale(owner: Any, refused: Refused, *, changed: Mapping[str, str], problem: str) -> Refused:
    """What was typed, over what is in force by now, and who put that there."""
    number, in_force = selectors.current_quotas(owner)
    typed = {**forms.typed_quotas(in_force), **{name: without_secrets(text) for name, text in changed.items()}}
    stored = selectors.quota_versions(owner, limit=PAGE_SIZE)
    newer = present_versions([each for each in stored if each.number > (refused.based_on or 0)], in_force=number)
    return dataclasses.replace(refused, typed=typed, problem=problem, is_stale=True, newer=newer)


def _owner(tenant_id: int, key_prefix: str | None) -> Any:
    return selectors.find_tenant(tenant_id) if key_prefix is None else selectors.find_key(tenant_id, key_prefix)


def _typed_at(owner: Any, number: int) -> dict[str, str] | None:
    """The quotas of version `number` as the form shows them; None where there is no such version."""
    if number == 0:
        return dict.fromkeys(quota_names(), "")
    found = selectors.quota_versions(owner, before=min(number, _LARGEST_NUMBER - 1) + 1, limit=1)
    if not found or found[0].number != number:
        return None
    return forms.typed_quotas(selectors.quotas_of(found[0].values))
