"""Pools, every version of tunables that they ran or run, and what a version was stored with."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class Pool(models.Model):
    """Named capacity: the engines that serve one model under one set of tunables. `unconfigured_since` is None while
    the settings name it; afterwards its past stays, and nothing of it can be changed."""

    name = models.CharField(max_length=100, unique=True)
    model = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    unconfigured_since = models.DateTimeField(null=True)

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


class GuardrailState(models.TextChoices):
    """What became of a guardrail. `stuck`: it was missed, and the version before would do no longer. `called_off`: an
    operator did, or left the pool out, and the version stays."""

    WATCHING = "watching"
    PASSED = "passed"
    MISSED = "missed"
    SUPERSEDED = "superseded"
    STUCK = "stuck"
    CALLED_OFF = "called_off"


class Guardrail(models.Model):
    """What a version is watched by: see `serving.contracts.guardrails.GuardrailTerms`. `starts_at` is when the watch
    began, `missed_since` since when the bound is missed without a break, `value` the metric's when that had lasted too
    long, and `note` says what became of it."""

    version = models.OneToOneField(TunablesVersion, on_delete=models.CASCADE, related_name="guardrail")
    metric = models.CharField(max_length=40)
    bound = models.FloatField()
    window_seconds = models.FloatField()
    watch_seconds = models.FloatField()
    state = models.CharField(max_length=20, choices=GuardrailState.choices, default=GuardrailState.WATCHING)
    starts_at = models.DateTimeField()
    missed_since = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    value = models.FloatField(null=True)
    note = models.CharField(max_length=500, blank=True)

    class Meta:
        indexes = (models.Index(fields=("state",), name="guardrails_by_state"),)

    def __str__(self) -> str:
        return f"guardrail of version {self.version_id}"


class CanaryState(models.TextChoices):
    """What became of a canary: taken to all engines, or back."""

    RUNNING = "running"
    PROMOTED = "promoted"
    WITHDRAWN = "withdrawn"


class Canary(models.Model):
    """A version that runs on one engine of its pool first; while it does, the version before is in force. `baseline`
    holds what each engine had counted at `started_at`: `{engine id: {counter: value}}`. Both are of the engine that
    tries it now: it may have moved there from one that is gone."""

    version = models.OneToOneField(TunablesVersion, on_delete=models.CASCADE, related_name="canary")
    engine_id = models.CharField(max_length=200)
    state = models.CharField(max_length=20, choices=CanaryState.choices, default=CanaryState.RUNNING)
    baseline = models.JSONField(default=dict)
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)
    ended_by = models.CharField(max_length=200, blank=True)

    class Meta:
        indexes = (models.Index(fields=("state",), name="canaries_by_state"),)

    def __str__(self) -> str:
        return f"canary of version {self.version_id}"


class VersionEffect(models.Model):
    """What was measured around a version, kept for good once it is over: what the rollups were that it is read from are
    pruned. `before` and `after` are `serving.telemetry.rollups.RollupContent`, encoded; null where nothing was measured
    there."""

    version = models.OneToOneField(TunablesVersion, on_delete=models.CASCADE, related_name="effect")
    before = models.BinaryField(null=True)
    after = models.BinaryField(null=True)
    kept_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"effect of version {self.version_id}"
