"""Writing down who changed what of a tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.admission.models import Tenant
from serving.audit.actions import Action
from serving.audit.services import record
from serving.contracts.actors import Author
from serving.contracts.errors import InvalidValue
from serving.contracts.texts import is_storable

LONGEST_REASON = 500


def check_reason(reason: str) -> None:
    """Raise `InvalidValue` for a reason that cannot be stored."""
    if not is_storable(reason, longest=LONGEST_REASON):
        raise InvalidValue("reason", reason, f"a text of at most {LONGEST_REASON} characters, without NUL and API keys")


def write_down(
    action: Action,
    tenant: Tenant,
    *,
    author: Author,
    key_prefix: str = "",
    changes: Mapping[str, Any] | None = None,
    reason: str = "",
) -> None:
    """Add to the audit what was done to a tenant or, where `key_prefix` is given, to that key of the tenant's; to be
    called in the transaction of the change. `changes` is `{name: [old, new]}`."""
    record(
        action,
        actor=author,
        subject_kind="key" if key_prefix else "tenant",
        subject=key_prefix or tenant.name,
        tenant=tenant.name,
        tenant_id=tenant.pk,
        changes=changes,
        reason=reason,
    )
