"""Making and ending keys. No message, log or exception here ever holds a key.

Blocking: async code calls these through `serving.threads.in_thread`.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from redis import Redis

from serving.admission.auditing import check_reason, write_down
from serving.admission.epochs import begin_epoch_on_commit
from serving.admission.keys import OFFERED_SCOPES, SCOPES, KeyText, make_key
from serving.admission.models import ApiKey, Tenant
from serving.admission.quotas import change_quotas
from serving.admission.selectors import find_key, find_tenant
from serving.admission.tenants import ensure_tenant
from serving.contracts.actors import COMMAND_LINE, Author
from serving.contracts.errors import InvalidValue
from serving.contracts.quotas import Quotas
from serving.contracts.texts import is_storable

LONGEST_LABEL = 100
LAST_USED_SECONDS = 60.0
"""How far apart two writings of a key's last use are."""

_PREFIX_ATTEMPTS = 5
_LONGEST_LIFE = datetime.timedelta(days=36525)


def create_key(
    tenant: str,
    *,
    label: str = "",
    scopes: Iterable[str] = ("generate",),
    expires_at: datetime.datetime | None = None,
    author: Author = COMMAND_LINE,
) -> KeyText:
    """Make a key for the tenant of that name, who is made as well where there is none; no key changes that anyone
    knows, so that no epoch begins.

    Only its digest is stored: what this returns is the one chance to show it. Raises `InvalidValue` for an unknown
    scope, none at all, or a name or label that cannot be stored.
    """
    wanted = _checked_scopes(scopes)
    _check_label(label)
    with transaction.atomic():
        owner = ensure_tenant(tenant, author=author)
        _, key = _store_key(owner, label=label, scopes=wanted, expires_at=expires_at, author=author)
    return key


def add_key(
    tenant_id: int,
    *,
    author: Author,
    redis: Redis,
    scopes: Iterable[str],
    label: str = "",
    expires_at: datetime.datetime | None = None,
    quotas: Mapping[str, Any] | None = None,
    reason: str = "",
) -> tuple[ApiKey, KeyText]:
    """Make a key for a tenant; its text is nowhere but in what this returns.

    Raises `TenantNotFound`, and `UnknownField` and `InvalidValue` for what cannot be, an `expires_at` that is over or
    more than a century away among it. Quotas that bound nothing make no version.
    """
    check_reason(reason)
    wanted = _checked_scopes(scopes)
    _check_label(label)
    _check_expiry(expires_at)
    bounded = Quotas().changed(quotas or {})
    with transaction.atomic():
        tenant = find_tenant(tenant_id)
        stored, key = _store_key(
            tenant, label=label, scopes=wanted, expires_at=expires_at, author=author, reason=reason
        )
        if not bounded.is_empty:
            change_quotas(tenant_id, quotas or {}, author=author, redis=redis, key_prefix=key.prefix, reason=reason)
        begin_epoch_on_commit(redis)
    return stored, key


def revoke_key(tenant_id: int, prefix: str, *, author: Author, redis: Redis, reason: str = "") -> ApiKey:
    """End a key for good, at every door at once; one that was ended before stays as it is.

    Raises `TenantNotFound` and `KeyNotFound`.
    """
    check_reason(reason)
    with transaction.atomic():
        found = find_key(tenant_id, prefix)
        key = ApiKey.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=found.pk)
        if key.revoked_at is None:
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
            write_down("key revoked", key.tenant, author=author, key_prefix=prefix, reason=reason)
        # Told again where it was ended before: Redis may have been out of reach then.
        begin_epoch_on_commit(redis)
    return key


def note_key_uses(prefixes: Collection[str]) -> None:
    """Write down that these keys are used now, except of those whose last use was written a moment ago."""
    now = timezone.now()
    long_ago = Q(last_used_at=None) | Q(last_used_at__lte=now - datetime.timedelta(seconds=LAST_USED_SECONDS))
    ApiKey.objects.filter(long_ago, prefix__in=prefixes).update(last_used_at=now)


def _store_key(
    tenant: Tenant,
    *,
    label: str,
    scopes: tuple[str, ...],
    expires_at: datetime.datetime | None,
    author: Author,
    reason: str = "",
) -> tuple[ApiKey, KeyText]:
    """A new key, written down in the tenant's audit."""
    for _ in range(_PREFIX_ATTEMPTS):
        key = make_key()
        try:
            with transaction.atomic():
                stored = ApiKey.objects.create(
                    tenant=tenant,
                    label=label,
                    prefix=key.prefix,
                    digest=key.digest,
                    scopes=list(scopes),
                    expires_at=expires_at,
                )
        except IntegrityError:
            continue  # the prefix was taken
        ends = None if expires_at is None else expires_at.isoformat()
        made = {"label": [None, label], "scopes": [None, list(scopes)], "expires_at": [None, ends]}
        write_down("key made", tenant, author=author, key_prefix=key.prefix, changes=made, reason=reason)
        return stored, key
    raise AssertionError("no free key prefix: the system's randomness is broken")


def _checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(scopes))
    if not wanted or not set(wanted) <= set(SCOPES):
        raise InvalidValue("scopes", list(wanted), "some of " + ", ".join(OFFERED_SCOPES))
    return wanted


def _check_label(label: str) -> None:
    if not is_storable(label, longest=LONGEST_LABEL):
        raise InvalidValue("label", label, f"a text of up to {LONGEST_LABEL} characters, without NUL and API keys")


def _check_expiry(expires_at: datetime.datetime | None) -> None:
    if expires_at is None:
        return
    now = timezone.now()
    if timezone.is_naive(expires_at) or not now < expires_at <= now + _LONGEST_LIFE:
        bounds = "a moment from now to a century from now, with its offset from UTC"
        raise InvalidValue("expires_at", expires_at.isoformat(), bounds)
