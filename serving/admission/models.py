"""Tenants and their API keys, of which only digests are kept."""

from __future__ import annotations

import datetime

from django.db import models


class Tenant(models.Model):
    """Someone whose requests are told apart from others'."""

    name = models.CharField(max_length=100, unique=True)
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """One key of a tenant. Its text is shown when it is made and never again; `prefix` names it everywhere else."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="keys")
    label = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.prefix} of {self.tenant_id}"

    def is_valid_at(self, moment: datetime.datetime) -> bool:
        """Whether the key opens the door at `moment`, its tenant being enabled."""
        if self.revoked_at is not None or not self.tenant.enabled:
            return False
        return self.expires_at is None or moment < self.expires_at
