"""What the pages about keys show, from what was read: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from dashboard.tenant_presenters import quota_label
from serving.contracts.quotas import Quotas

_ABOUT = {
    "generate": "ask models",
    "batch": "files and batches",
    "observe": "read figures",
    "operate": "change tunables",
    "admin": "change tenants and keys",
}


class StoredKey(Protocol):
    """A key as the database has it."""

    pk: int
    label: str
    prefix: str
    scopes: list[str]
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    revoked_at: datetime.datetime | None
    last_used_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """One key. `state` is `valid`, `expired` or `revoked`; `quotas` are its own, in words."""

    prefix: str
    label: str
    scopes: str
    state: str
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    revoked_at: datetime.datetime | None
    last_used_at: datetime.datetime | None
    quotas: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Whether it opens the door, its tenant being enabled."""
        return self.state == "valid"


@dataclasses.dataclass(frozen=True, slots=True)
class ScopeChoice:
    """A scope that a key may be given."""

    name: str
    about: str
    is_chosen: bool


def present_keys(
    keys: Iterable[StoredKey], quotas: Mapping[int, Quotas], *, now: datetime.datetime
) -> tuple[KeyRow, ...]:
    """A row a key, those that are valid first; `quotas` are those in force, by primary key."""
    rows = [
        KeyRow(
            prefix=key.prefix,
            label=key.label,
            scopes=", ".join(key.scopes),
            state=_state_of(key, now),
            created_at=key.created_at,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            last_used_at=key.last_used_at,
            quotas=_in_words(quotas[key.pk]),
        )
        for key in keys
    ]
    return tuple(sorted(rows, key=lambda row: not row.is_valid))


def present_scopes(names: Iterable[str], chosen: Collection[str]) -> tuple[ScopeChoice, ...]:
    """A choice a scope."""
    return tuple(ScopeChoice(name, _ABOUT.get(name, ""), name in chosen) for name in names)


def _state_of(key: StoredKey, now: datetime.datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "valid"


def _in_words(quotas: Quotas) -> tuple[str, ...]:
    bounds = quotas.as_dict()
    return tuple(f"{quota_label(name)}: {value:,}" for name, value in bounds.items() if value is not None)
