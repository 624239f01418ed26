"""What was done, by whom and why."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models
from django.utils import timezone

LONGEST_NAME = 200
LONGEST_REASON = 500


class AppendOnly(Exception):
    """Somebody tried to change or delete what the audit has. Never reaches a client."""


class AuditEvents(models.QuerySet["AuditEvent"]):
    """Owns nothing. Events as they are read: none is changed or deleted."""

    def update(self, **_values: Any) -> NoReturn:
        """Raise `AppendOnly`."""
        raise AppendOnly("events of the audit are never changed")

    def delete(self) -> NoReturn:
        """Raise `AppendOnly`."""
        raise AppendOnly("events of the audit are never deleted")


class AuditEvent(models.Model):
    """One act of a user, a key, the command line or Footplate itself; never changed and never deleted: saving one again
    raises `AppendOnly`, and the database refuses what goes past this class.

    `action` is one of `serving.audit.actions.ACTIONS`. `subject` names what it was done to: a key's public prefix, a
    pool's, tenant's or user's name, the id of an engine or a request. `pool` and `tenant` are names as they were then,
    empty where it concerns none; `tenant_id_then` is the tenant's primary key. `changes` is `{name: [old, new]}`.
    """

    at = models.DateTimeField(default=timezone.now)
    actor = models.CharField(max_length=LONGEST_NAME)
    actor_kind = models.CharField(max_length=10)
    action = models.CharField(max_length=40)
    subject_kind = models.CharField(max_length=20)
    subject = models.CharField(max_length=LONGEST_NAME, blank=True)
    pool = models.CharField(max_length=100, blank=True)
    tenant = models.CharField(max_length=100, blank=True)
    tenant_id_then = models.BigIntegerField(null=True, blank=True)
    changes = models.JSONField(default=dict)
    reason = models.CharField(max_length=LONGEST_REASON, blank=True)
    request_id = models.CharField(max_length=100, blank=True)
    address = models.CharField(max_length=45, blank=True)

    objects = AuditEvents.as_manager()

    class Meta:
        ordering = ("-at", "-pk")
        indexes = (
            models.Index(fields=("-at", "-id"), name="acts_by_time"),
            models.Index(fields=("tenant_id_then", "-at", "-id"), name="acts_on_tenant_by_time"),
            models.Index(fields=("actor", "-at", "-id"), name="acts_of_actor_by_time"),
        )

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Store a new event. Raises `AppendOnly` for one that is stored already."""
        if not self._state.adding:
            raise AppendOnly("events of the audit are never changed")
        super().save(*args, **{**kwargs, "force_insert": True})

    def delete(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise `AppendOnly`."""
        raise AppendOnly("events of the audit are never deleted")
