"""Changing quotas: each change is a new version, in force at every door as soon as it is stored.

Blocking: async code calls these through `serving.threads.in_thread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from redis import Redis

from serving.admission.auditing import check_reason, write_down
from serving.admission.epochs import begin_epoch_on_commit
from serving.admission.models import ApiKey, QuotaVersion, Tenant
from serving.admission.selectors import current_quotas, find_key, find_tenant, quotas_of, versions_of
from serving.contracts.actors import Author, name_of
from serving.contracts.errors import InvalidValue, NothingChanges, StaleVersion
from serving.contracts.quotas import Quotas


def change_quotas(
    tenant_id: int,
    changes: Mapping[str, Any],
    *,
    author: Author,
    redis: Redis,
    key_prefix: str | None = None,
    reason: str = "",
    based_on: int | None = None,
) -> QuotaVersion:
    """Store the quotas of a tenant, or of its key `key_prefix`, with `changes` applied as a new version.

    Raises `TenantNotFound`, `KeyNotFound`, `UnknownField` and `InvalidValue` for what is named wrongly,
    `NothingChanges` where nothing would change, and `StaleVersion` where `based_on` is given and no longer the newest
    version (0 where there is none yet).
    """
    check_reason(reason)
    with transaction.atomic():
        owner = _locked(tenant_id, key_prefix)
        number, before = current_quotas(owner)
        _check_base(based_on, number)
        wanted = before.changed(changes)
        return _store(owner, number, before, wanted, reason=reason, author=author, param="quotas", redis=redis)


def roll_back_quotas(
    tenant_id: int,
    to_number: int,
    *,
    author: Author,
    redis: Redis,
    key_prefix: str | None = None,
    reason: str = "",
    based_on: int | None = None,
) -> QuotaVersion:
    """Store a new version whose quotas equal those of version `to_number`; 0 is what was before the first: no bounds.

    Raises what `change_quotas` does, and `InvalidValue` where there is no such version.
    """
    check_reason(reason)
    with transaction.atomic():
        owner = _locked(tenant_id, key_prefix)
        number, before = current_quotas(owner)
        _check_base(based_on, number)
        wanted = _quotas_at(owner, to_number, newest=number)
        reason = reason or f"roll back to version {to_number}"
        return _store(owner, number, before, wanted, reason=reason, author=author, param="version", redis=redis)


def _locked(tenant_id: int, key_prefix: str | None) -> Tenant | ApiKey:
    """The owner, locked until the transaction ends (in SQLite the transaction itself locks)."""
    if key_prefix is None:
        return Tenant.objects.select_for_update().get(pk=find_tenant(tenant_id).pk)
    found = find_key(tenant_id, key_prefix)
    return ApiKey.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=found.pk)


def _quotas_at(owner: Tenant | ApiKey, number: int, *, newest: int) -> Quotas:
    if number == 0:
        return Quotas()
    version = versions_of(owner).filter(number=number).first() if number <= newest else None
    if version is None:
        raise InvalidValue("version", number, f"a stored version, from 0 (no bounds) to {newest}")
    return quotas_of(version.values)


def _check_base(based_on: int | None, number: int) -> None:
    if based_on is not None and based_on != number:
        raise StaleVersion(f"version {number} of the quotas is in force, not {based_on}: look at it and try again")


def _store(
    owner: Tenant | ApiKey,
    number: int,
    before: Quotas,
    wanted: Quotas,
    *,
    reason: str,
    author: Author,
    param: str,
    redis: Redis,
) -> QuotaVersion:
    old = before.as_dict()
    differences = {name: [old[name], value] for name, value in wanted.as_dict().items() if value != old[name]}
    if not differences:
        raise NothingChanges(f"nothing would change: version {number}, in force, has these quotas", param=param)
    tenant, key = (owner, None) if isinstance(owner, Tenant) else (owner.tenant, owner)
    version = QuotaVersion.objects.create(
        tenant=tenant,
        key=key,
        number=number + 1,
        values=wanted.as_dict(),
        changes=differences,
        reason=reason,
        author=name_of(author),
    )
    prefix = "" if key is None else key.prefix
    write_down("quotas changed", tenant, author=author, key_prefix=prefix, changes=differences, reason=reason)
    begin_epoch_on_commit(redis)
    return version
