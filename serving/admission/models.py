"""Tenants and their API keys, of which only digests are kept; what they may use, and what they used."""

from __future__ import annotations

import datetime

from django.db import models


class Tenant(models.Model):
    """Someone whose requests are told apart from others'. `weight` is its share where the pool's order is `fair`,
    `most_urgent` the lowest priority that its requests may have, `pools` the names of those that they may use, in order
    of preference; None is all. `keeps_text` lets the log of requests keep what they say and are answered."""

    name = models.CharField(max_length=100, unique=True)
    weight = models.FloatField(default=1.0)
    most_urgent = models.SmallIntegerField(default=0)
    pools = models.JSONField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    keeps_text = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """One key of a tenant. Its text is shown when it is made and never again; `prefix` names it everywhere else.

    `last_used_at` is written at most once a minute.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="keys")
    label = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.prefix} of {self.tenant_id}"

    def is_valid_at(self, moment: datetime.datetime) -> bool:
        """Whether the key opens the door at `moment`, its tenant being enabled."""
        if self.revoked_at is not None or not self.tenant.enabled:
            return False
        return self.expires_at is None or moment < self.expires_at


class QuotaVersion(models.Model):
    """One version of the quotas of a tenant or, where `key` is set, of that key of the tenant's; never changed once
    written. Before the first, nothing is bounded. `changes` is `{name: [old, new]}`."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quota_versions")
    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="quota_versions")
    number = models.PositiveIntegerField()
    values = models.JSONField()
    changes = models.JSONField(default=dict)
    reason = models.CharField(max_length=500, blank=True)
    author = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-number",)
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "number"), condition=models.Q(key=None), name="one_tenant_quota_version_a_number"
            ),
            models.UniqueConstraint(fields=("key", "number"), name="one_key_quota_version_a_number"),
        )

    def __str__(self) -> str:
        return f"quotas of {self.key_id or self.tenant_id}, version {self.number}"


class Usage(models.Model):
    """What one key of a tenant used on one day of UTC; `key_prefix` is empty for what no key was used for."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="usage")
    key_prefix = models.CharField(max_length=16, blank=True)
    day = models.DateField()
    num_requests = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "key_prefix", "day"), name="one_usage_a_key_and_day"),)
        indexes = (models.Index(fields=("key_prefix", "day"), name="usage_of_key_by_day"),)

    def __str__(self) -> str:
        return f"{self.key_prefix or self.tenant_id} on {self.day}"
