"""Pools, and every version of tunables that they ran or run."""

from __future__ import annotations

from django.db import models


class Pool(models.Model):
    """Named capacity: the engines that serve one model under one set of tunables."""

    name = models.CharField(max_length=100, unique=True)
    model = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class TunablesVersion(models.Model):
    """One version of a pool's tunables; never changed once written. `changes` is `{name: [old, new]}`."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    values = models.JSONField()
    changes = models.JSONField(default=dict)
    reason = models.CharField(max_length=500, blank=True)
    author = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-number",)
        constraints = (models.UniqueConstraint(fields=("pool", "number"), name="one_version_a_number"),)

    def __str__(self) -> str:
        return f"{self.pool_id} version {self.number}"
