"""On whose account a request goes, and what that account may use. Values only."""

from __future__ import annotations

import dataclasses

from serving.contracts.quotas import Quotas


class StaleAccount(Exception):
    """Tenants, keys or quotas have changed since the account was read: read it anew. Never reaches a client."""


@dataclasses.dataclass(frozen=True, slots=True)
class Charge:
    """One of those that a request is charged to: `subject` is `tenant:<id>` or `key:<public prefix>`, `version` the
    number of its quotas' version."""

    subject: str
    quotas: Quotas
    version: int = 0

    @property
    def whose(self) -> str:
        """Whom the subject is, as clients are told."""
        return f"the {self.subject.partition(':')[0]}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whom a request is charged to: its tenant, and its key where that has quotas of its own; for the console's
    prompts the tenant `console`.

    `epoch` names the state of all tenants, keys and quotas that this was read from; the door takes no request on an
    older one, so that what was revoked or lowered counts at once. None is never old. `weight` is the tenant's share
    where the pool's order is `fair`, and `most_urgent` the lowest priority that its requests may have. `tenant_id` and
    `key_prefix` say under whose name the ledger keeps what was used; it keeps nothing of no tenant. `pools` are the
    names of those that its requests may use, in order of preference; None is all. `tenant_name` is for the log of
    requests, which keeps their texts where `keeps_text` says so.
    """

    charges: tuple[Charge, ...] = ()
    epoch: str | None = None
    weight: float = 1.0
    most_urgent: int = -100
    tenant_id: int | None = None
    key_prefix: str = ""
    pools: tuple[str, ...] | None = None
    tenant_name: str = ""
    keeps_text: bool = False
