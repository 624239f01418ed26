"""Writing down who changed what of a tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.admission.models import AuditEntry, Tenant
from serving.contracts.errors import InvalidValue
from serving.contracts.texts import is_storable

LONGEST_REASON = 500
COMMAND_LINE = "command line"
"""Who changed what nobody signed in for."""


def check_reason(reason: str) -> None:
    """Raise `InvalidValue` for a reason that cannot be stored."""
    if not is_storable(reason, longest=LONGEST_REASON):
        raise InvalidValue("reason", reason, f"a text of at most {LONGEST_REASON} characters, without NUL and API keys")


def write_down(
    action: str,
    tenant: Tenant,
    *,
    author: str,
    key_prefix: str = "",
    changes: Mapping[str, Any] | None = None,
    reason: str = "",
) -> None:
    """Add to the tenant's audit; to be called in the transaction of the change. `changes` is `{name: [old, new]}`."""
    AuditEntry.objects.create(
        tenant=tenant, key_prefix=key_prefix, action=action, changes=dict(changes or {}), reason=reason, author=author
    )
