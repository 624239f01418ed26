"""Bodies of requests about tenants, keys and quotas. As everywhere, `null` counts as absent; within `quotas` it is no
bound, and as `pools` it is all of them."""

from __future__ import annotations

from typing import Any

from serving.admission.auditing import LONGEST_REASON
from serving.admission.keys import OFFERED_SCOPES, SCOPES
from serving.admission.services import LONGEST_LABEL
from serving.admission.tenants import LEAST_WEIGHT, LONGEST_NAME, MOST_POOLS, MOST_WEIGHT
from serving.api.strict import MAX_INT, StrictModel, admitting
from serving.contracts.messages import MAX_PRIORITY
from serving.contracts.quotas import quota_meanings

_QUOTAS = "an object of quotas, each an integer of at least 1, or null for no bound"
_MEANINGS = "What may be used. " + "; ".join(f"{name}: {about}" for name, about in quota_meanings().items())
_NAME = f"a name of 1 to {LONGEST_NAME} characters"
_WEIGHT = f"a number from {LEAST_WEIGHT} to {MOST_WEIGHT:g}"
_PRIORITY = f"an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}"
_POOLS = f"a list of 1 to {MOST_POOLS} names of pools, none twice, or null for all pools"
_FLAG = "true or false"
_REASON = f"a text of up to {LONGEST_REASON} characters"
_VERSION = "the number of a version of the quotas, 0 for the state before the first"


class TenantAttributes(StrictModel):
    """What a tenant is made with and can be changed in."""

    weight: float | None = admitting(
        _WEIGHT, about="Share where the pool's order is fair", ge=LEAST_WEIGHT, le=MOST_WEIGHT
    )
    most_urgent: int | None = admitting(
        _PRIORITY, about="Lowest priority that requests may have", ge=-MAX_PRIORITY, le=MAX_PRIORITY
    )
    pools: list[str] | None = admitting(
        _POOLS, about="Pools that requests may use, the preferred first", min_length=1, max_length=MOST_POOLS
    )
    enabled: bool | None = admitting(_FLAG, about="Whether any of the tenant's keys opens")
    keeps_text: bool | None = admitting(_FLAG, about="Whether prompts and answers are kept in the log of requests")
    quotas: dict[str, Any] | None = admitting(_QUOTAS, about=_MEANINGS)
    reason: str | None = admitting(_REASON, about="Why", max_length=LONGEST_REASON)


class NewTenant(TenantAttributes):
    """`POST /ops/v1/tenants`."""

    name: str = admitting(_NAME, default=..., min_length=1, max_length=LONGEST_NAME)


class TenantChange(TenantAttributes):
    """`PATCH /ops/v1/tenants/{tenant_id}`: what is left out stays."""

    name: str | None = admitting(_NAME, min_length=1, max_length=LONGEST_NAME)
    based_on: int | None = admitting(
        _VERSION, about="Refuse the change where other quotas are in force by now", ge=0, le=MAX_INT
    )


class NewKey(StrictModel):
    """`POST /ops/v1/tenants/{tenant_id}/keys`."""

    scopes: list[str] = admitting(
        "some of " + ", ".join(OFFERED_SCOPES), default=..., min_length=1, max_length=len(SCOPES)
    )
    label: str | None = admitting(
        f"a text of up to {LONGEST_LABEL} characters", about="What the key is for", max_length=LONGEST_LABEL
    )
    expires_at: str | None = admitting(
        "a moment of ISO 8601 with its offset from UTC, as 2030-01-31T12:00:00Z",
        about="When the key ends; never, where it is left out",
        max_length=50,
    )
    quotas: dict[str, Any] | None = admitting(_QUOTAS, about="What this key may use, within what its tenant may")
    reason: str | None = admitting(_REASON, about="Why", max_length=LONGEST_REASON)


class KeyChange(StrictModel):
    """`PATCH /ops/v1/tenants/{tenant_id}/keys/{prefix}`."""

    quotas: dict[str, Any] = admitting(_QUOTAS, about="Quotas that are left out stay", default=..., min_length=1)
    reason: str | None = admitting(_REASON, about="Why", max_length=LONGEST_REASON)
    based_on: int | None = admitting(
        _VERSION, about="Refuse the change where other quotas are in force by now", ge=0, le=MAX_INT
    )


class QuotasRollback(StrictModel):
    """`POST …/quotas/rollback`."""

    version: int = admitting(_VERSION, default=..., ge=0, le=MAX_INT)
    reason: str | None = admitting(_REASON, about="Why", max_length=LONGEST_REASON)
    based_on: int | None = admitting(
        _VERSION, about="Refuse to roll back where other quotas are in force by now", ge=0, le=MAX_INT
    )
