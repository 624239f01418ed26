"""What the audit's page and its CSV show of events. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from django.urls import reverse

from dashboard.presenters import ChangeRow
from dashboard.tenant_presenters import shown

CSV_HEADER = (
    "time",
    "actor",
    "actor_kind",
    "action",
    "subject_kind",
    "subject",
    "pool",
    "tenant",
    "changes",
    "reason",
    "request_id",
    "address",
)
_KINDS = {"user": "user", "key": "API key", "command": "command line", "system": "Footplate itself"}


class StoredEvent(Protocol):
    """An event as the database has it."""

    pk: Any
    at: datetime.datetime
    actor: str
    actor_kind: str
    action: str
    subject_kind: str
    subject: str
    pool: str
    tenant: str
    tenant_id_then: int | None
    changes: dict[str, Any]
    reason: str
    request_id: str
    address: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event in the list. `url` leads to what it was done to, where there is a page of it."""

    at: datetime.datetime
    actor: str
    actor_kind: str
    action: str
    is_alarming: bool
    subject_kind: str
    subject: str
    url: str | None
    pool: str
    tenant: str
    changes: tuple[ChangeRow, ...]
    reason: str
    request_id: str
    address: str


def present_events(events: Iterable[StoredEvent]) -> tuple[EventRow, ...]:
    """A row an event."""
    return tuple(
        EventRow(
            at=event.at,
            actor=event.actor,
            actor_kind=_KINDS.get(event.actor_kind, event.actor_kind),
            action=event.action,
            is_alarming=event.action in ("sign-in failed", "guardrail rolled back"),
            subject_kind=event.subject_kind,
            subject=event.subject,
            url=_url_of(event),
            pool="" if event.subject_kind == "pool" else event.pool,
            tenant="" if event.subject_kind == "tenant" else event.tenant,
            changes=_present_changes(event.changes, is_new=event.action.endswith(" made")),
            reason=event.reason,
            request_id=event.request_id if event.request_id != event.subject else "",
            address=event.address,
        )
        for event in events
    )


def csv_row_of(event: StoredEvent) -> tuple[str, ...]:
    """An event as a row under `CSV_HEADER`."""
    return (
        event.at.astimezone(datetime.UTC).isoformat(timespec="milliseconds"),
        event.actor,
        event.actor_kind,
        event.action,
        event.subject_kind,
        event.subject,
        event.pool,
        event.tenant,
        json.dumps(event.changes, ensure_ascii=False) if event.changes else "",
        event.reason,
        event.request_id,
        event.address,
    )


def _present_changes(changes: Mapping[str, Any], *, is_new: bool) -> tuple[ChangeRow, ...]:
    return tuple(_present_change(name, pair, is_new=is_new) for name, pair in changes.items())


def _present_change(name: str, pair: Any, *, is_new: bool) -> ChangeRow:
    if not isinstance(pair, list) or len(pair) != 2:
        return ChangeRow(name, "", _shown(name, pair), "")
    old, new = pair
    return ChangeRow(name, "" if is_new and old is None else _shown(name, old), _shown(name, new), "")


def _shown(name: str, value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else shown(name, value)


def _url_of(event: StoredEvent) -> str | None:
    if event.subject_kind == "pool" and event.subject:
        return reverse("dashboard:versions", kwargs={"pool": event.subject})
    if event.subject_kind == "tenant" and event.tenant_id_then is not None:
        return reverse("dashboard:tenant", kwargs={"tenant_id": event.tenant_id_then})
    if event.subject_kind == "key" and event.tenant_id_then is not None:
        return reverse("dashboard:tenant_key", kwargs={"tenant_id": event.tenant_id_then, "prefix": event.subject})
    if event.subject_kind == "request" and event.subject:
        return f"/console/requests/{quote(event.subject, safe='')}/"
    return None
