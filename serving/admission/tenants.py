"""Making and changing tenants. Each change counts at every door as soon as it is stored.

Blocking: async code calls these through `serving.threads.in_thread`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from redis import Redis

from serving.admission.auditing import check_reason, write_down
from serving.admission.epochs import begin_epoch_on_commit
from serving.admission.models import Tenant
from serving.admission.quotas import change_quotas
from serving.admission.selectors import find_tenant
from serving.contracts.actors import COMMAND_LINE, Author
from serving.contracts.errors import InvalidValue, NameTaken, StaleVersion, UnknownField
from serving.contracts.ids import POOL_NAME
from serving.contracts.messages import MAX_PRIORITY
from serving.contracts.quotas import Quotas
from serving.contracts.texts import is_storable

LONGEST_NAME = 100
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 1000.0
MOST_POOLS = 16


def create_tenant(
    name: str,
    *,
    author: Author,
    redis: Redis,
    quotas: Mapping[str, Any] | None = None,
    reason: str = "",
    **attributes: Any,
) -> Tenant:
    """Make a tenant; `attributes` are some of `weight`, `most_urgent`, `pools`, `enabled` and `keeps_text`.

    Raises `NameTaken`, and `UnknownField` and `InvalidValue` for what cannot be. Whether there are such pools is the
    caller's to check. Quotas that bound nothing make no version.
    """
    check_reason(reason)
    wanted = _checked({"name": name, **attributes})
    bounded = Quotas().changed(quotas or {})
    with transaction.atomic():
        tenant = Tenant(**wanted)
        _save(tenant)
        made = {field: [None, value] for field, value in wanted.items()}
        write_down("tenant made", tenant, author=author, changes=made, reason=reason)
        if not bounded.is_empty:
            change_quotas(tenant.pk, quotas or {}, author=author, redis=redis, reason=reason)
        begin_epoch_on_commit(redis)
    return tenant


def change_tenant(
    tenant_id: int,
    changes: Mapping[str, Any],
    *,
    author: Author,
    redis: Redis,
    quotas: Mapping[str, Any] | None = None,
    reason: str = "",
    based_on: int | None = None,
    seen: Mapping[str, Any] | None = None,
) -> Tenant:
    """Change some of `name`, `weight`, `most_urgent`, `pools`, `enabled` and `keeps_text`, and those quotas, where
    `quotas` is given: all or nothing.

    What is so already stays so. Whether there are such pools is the caller's to check. Raises `TenantNotFound`,
    `NameTaken`, `UnknownField` and `InvalidValue`, `StaleVersion` where one of `changes` is no longer what the caller
    has `seen`, and what `change_quotas` does, to which `reason` and `based_on` go.
    """
    check_reason(reason)
    wanted = _checked(changes)
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update().get(pk=find_tenant(tenant_id).pk)
        differences = {
            field: [before, value] for field, value in wanted.items() if (before := getattr(tenant, field)) != value
        }
        _check_seen(differences, seen or {})
        if differences:
            for field, (_, value) in differences.items():
                setattr(tenant, field, value)
            _save(tenant)
            write_down("tenant changed", tenant, author=author, changes=differences, reason=reason)
        # Told again where all is so already: Redis may have been out of reach then.
        begin_epoch_on_commit(redis)
        if quotas is None and based_on is not None:
            raise InvalidValue("based_on", based_on, "left out unless quotas are changed, whose version it is")
        if quotas is not None:
            change_quotas(tenant_id, quotas, author=author, redis=redis, reason=reason, based_on=based_on)
    return tenant


def ensure_tenant(name: str, *, author: Author = COMMAND_LINE, **attributes: Any) -> Tenant:
    """The tenant of that name, made with `attributes` where there is none. Raises `InvalidValue`."""
    wanted = _checked({"name": name, **attributes})
    with transaction.atomic():
        tenant, is_new = Tenant.objects.get_or_create(name=name, defaults=wanted)
        if is_new:
            made = {field: [None, value] for field, value in wanted.items()}
            write_down("tenant made", tenant, author=author, changes=made)
    return tenant


def check_attribute(field: str, value: Any) -> None:
    """Raise `UnknownField` and `InvalidValue` for what no tenant can have. Whether a name is free is not looked at."""
    _checked({field: value})


def _check_seen(differences: Mapping[str, list[Any]], seen: Mapping[str, Any]) -> None:
    for field, (before, _) in differences.items():
        if field in seen and seen[field] != before:
            raise StaleVersion(
                f"{field} is {before!r} by now, not {seen[field]!r}: look at it and try again", param=field
            )


def _save(tenant: Tenant) -> None:
    try:
        with transaction.atomic():
            tenant.save()
    except IntegrityError:
        raise NameTaken(f"there is a tenant named {tenant.name!r} already", param="name") from None


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as they are stored; raises `UnknownField` and `InvalidValue`."""
    for field, value in values.items():
        if field not in _CHECKS:
            raise UnknownField(f"a tenant has no {field!r}; it has: {', '.join(_CHECKS)}", param=field)
        fits, bounds = _CHECKS[field]
        if not fits(value):
            raise InvalidValue(field, value, bounds)
    return {field: float(value) if field == "weight" else value for field, value in values.items()}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_storable(value, longest=LONGEST_NAME)


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and LEAST_WEIGHT <= value <= MOST_WEIGHT and math.isfinite(value)


def _is_priority(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -MAX_PRIORITY <= value <= MAX_PRIORITY


def _are_pools(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_POOLS:
        return False
    are_names = all(isinstance(name, str) and POOL_NAME.fullmatch(name) is not None for name in value)
    return are_names and len(set(value)) == len(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_CHECKS = {
    "name": (_is_name, f"a name of 1 to {LONGEST_NAME} characters, without NUL and API keys"),
    "weight": (_is_weight, f"a number from {LEAST_WEIGHT} to {MOST_WEIGHT:g}"),
    "most_urgent": (_is_priority, f"an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}"),
    "pools": (_are_pools, f"a list of 1 to {MOST_POOLS} names of pools, none twice, or null for all pools"),
    "enabled": (_is_flag, "true or false"),
    "keeps_text": (_is_flag, "true or false"),
}
"""Of each attribute, what fits and how that is said."""
