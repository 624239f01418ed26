"""Writing down what was done. Blocking: async code calls this through `serving.threads.in_thread`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.audit.actions import Action, SubjectKind
from serving.audit.models import LONGEST_NAME, LONGEST_REASON, AuditEvent
from serving.contracts.actors import Author, actor_of
from serving.contracts.texts import without_secrets

_LONGEST_SHORT_NAME = 100
_LONGEST_ADDRESS = 45


def record(
    action: Action,
    *,
    actor: Author,
    subject_kind: SubjectKind,
    subject: str = "",
    pool: str = "",
    tenant: str = "",
    tenant_id: int | None = None,
    changes: Mapping[str, Any] | None = None,
    reason: str = "",
    request_id: str = "",
) -> None:
    """Add an act to the audit; to be called in the transaction of the change, so that both are kept or neither is.

    `changes` is `{name: [old, new]}` of what JSON can hold. `request_id` is by default that of the actor. No text is
    ever refused: NUL and the secret parts of API keys are left out, and what is too long is cut.
    """
    who = actor_of(actor)
    AuditEvent.objects.create(
        actor=_kept(who.name, LONGEST_NAME),
        actor_kind=who.kind,
        action=action,
        subject_kind=subject_kind,
        subject=_kept(subject, LONGEST_NAME),
        pool=_kept(pool, _LONGEST_SHORT_NAME),
        tenant=_kept(tenant, _LONGEST_SHORT_NAME),
        tenant_id_then=tenant_id,
        changes=_harmless(dict(changes or {})),
        reason=_kept(reason, LONGEST_REASON),
        request_id=_kept(request_id or who.request_id, _LONGEST_SHORT_NAME),
        address=_kept(who.address, _LONGEST_ADDRESS),
    )


def _kept(text: str, longest: int) -> str:
    return _clean(text)[:longest]


def _clean(text: str) -> str:
    # A half of a surrogate pair is no text to a database either.
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return without_secrets(whole.replace("\0", ""))


def _harmless(value: Any) -> Any:
    """A JSON value whose texts, names among them, the database takes and anyone may read."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, Mapping):
        return {_clean(str(name)): _harmless(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_harmless(item) for item in value]
    return value
