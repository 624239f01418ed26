"""`/ops/v1/tenants/{tenant_id}/keys`: keys, shown once when they are made, and their own quotas."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse

from serving.admission import selectors, services
from serving.admission.models import ApiKey
from serving.admission.quotas import change_quotas, roll_back_quotas
from serving.api.context import author_of, services_of
from serving.api.replies import json_reply, number_in_query
from serving.api.tenant_schemas import KeyChange, NewKey, QuotasRollback
from serving.api.tenants import describe_version, tenant_id_of
from serving.contracts.errors import InvalidValue
from serving.threads import in_thread

_MOST_VERSIONS = 100


async def list_keys(request: HttpRequest, tenant_id: str) -> HttpResponse:
    """A tenant's keys, the newest first, those that ended too. Nothing here opens a door."""
    return json_reply({"data": await in_thread(_read_keys, tenant_id_of(tenant_id))})


async def create_key(request: HttpRequest, tenant_id: str, body: NewKey) -> HttpResponse:
    """Make a key. `key` in the answer is its text, which is kept nowhere and never shown again."""
    stored, key = await in_thread(
        services.add_key,
        tenant_id_of(tenant_id),
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        scopes=body.scopes,
        label=body.label or "",
        expires_at=_moment(body.expires_at),
        quotas=body.quotas,
        reason=body.reason or "",
    )
    described = await in_thread(_read_key, stored.tenant_id, stored.prefix)
    return json_reply({**described, "key": key.text}, status=201)


async def show_key(request: HttpRequest, tenant_id: str, prefix: str) -> HttpResponse:
    """One key of a tenant, by its public prefix."""
    return json_reply(await in_thread(_read_key, tenant_id_of(tenant_id), prefix))


async def change_key(request: HttpRequest, tenant_id: str, prefix: str, body: KeyChange) -> HttpResponse:
    """Change a key's own quotas, which bound it beside its tenant's; it counts for the next request."""
    await in_thread(
        change_quotas,
        tenant_id_of(tenant_id),
        body.quotas,
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        key_prefix=prefix,
        reason=body.reason or "",
        based_on=body.based_on,
    )
    return json_reply(await in_thread(_read_key, tenant_id_of(tenant_id), prefix))


async def delete_key(request: HttpRequest, tenant_id: str, prefix: str) -> HttpResponse:
    """End a key for good, at once; one that ended before stays as it is."""
    return await _revoke(request, tenant_id, prefix)


async def revoke_key(request: HttpRequest, tenant_id: str, prefix: str) -> HttpResponse:
    """As `DELETE`, for clients that cannot send it."""
    return await _revoke(request, tenant_id, prefix)


async def list_key_quota_versions(request: HttpRequest, tenant_id: str, prefix: str) -> HttpResponse:
    """The newest hundred versions of a key's own quotas, newest first; `before` is the number that they begin below."""
    before = number_in_query(request, "before", default=2**31 - 1, low=1, high=2**31 - 1)
    return json_reply({"data": await in_thread(_read_versions, tenant_id_of(tenant_id), prefix, before=before)})


async def roll_back_key_quotas(request: HttpRequest, tenant_id: str, prefix: str, body: QuotasRollback) -> HttpResponse:
    """Store an older version's quotas as a new version; it counts for the next request."""
    version = await in_thread(
        roll_back_quotas,
        tenant_id_of(tenant_id),
        body.version,
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        key_prefix=prefix,
        reason=body.reason or "",
        based_on=body.based_on,
    )
    return json_reply(describe_version(version))


async def _revoke(request: HttpRequest, tenant_id: str, prefix: str) -> HttpResponse:
    key = await in_thread(
        services.revoke_key,
        tenant_id_of(tenant_id),
        prefix,
        author=author_of(request),
        redis=services_of(request).blocking_redis,
    )
    return json_reply(await in_thread(_read_key, key.tenant_id, key.prefix))


def _read_keys(tenant_id: int) -> list[dict[str, Any]]:
    return _described(selectors.keys_of(selectors.find_tenant(tenant_id)))


def _read_key(tenant_id: int, prefix: str) -> dict[str, Any]:
    (described,) = _described([selectors.find_key(tenant_id, prefix)])
    return described


def _described(found: Sequence[ApiKey]) -> list[dict[str, Any]]:
    in_force = selectors.current_quotas_by_owner(found)
    return [
        {
            "prefix": key.prefix,
            "label": key.label,
            "scopes": key.scopes,
            "created_at": key.created_at,
            "expires_at": key.expires_at,
            "revoked_at": key.revoked_at,
            "last_used_at": key.last_used_at,
            "quotas": in_force[key.pk][1].as_dict(),
            "quotas_version": in_force[key.pk][0],
        }
        for key in found
    ]


def _read_versions(tenant_id: int, prefix: str, *, before: int) -> list[dict[str, Any]]:
    found = selectors.quota_versions(selectors.find_key(tenant_id, prefix), before=before, limit=_MOST_VERSIONS)
    return [describe_version(version) for version in found]


def _moment(text: str | None) -> datetime.datetime | None:
    """A moment in UTC; raises `InvalidValue` for what is none, or does not say its offset."""
    if text is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        bounds = "a moment of ISO 8601 with its offset from UTC, as 2030-01-31T12:00:00Z"
        raise InvalidValue("expires_at", text, bounds) from None
