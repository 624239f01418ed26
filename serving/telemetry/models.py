"""What is kept of the past: every request that ended, what was measured in every stretch of time, and what happened."""

from __future__ import annotations

from django.db import models

from serving.telemetry.alert_models import Alert, AlertNotice, AlertRule

__all__ = ["Alert", "AlertNotice", "AlertRule", "PoolEvent", "RequestRecord", "Rollup"]


class RequestRecord(models.Model):
    """One request that ended, whatever its end was; never changed once written.

    `tenant` and `key_prefix` are names, kept beyond the deletion of what they name; `tenant_id_then` is the tenant's
    key (None: no tenant's). `endpoint` is what was asked for: `chat`, `completion`, `embedding` or `console`. `outcome`
    is `finished`, `aborted`, `refused` or `failed`, `code` why it finished, was refused or failed. Durations are
    seconds, None where that did not come to pass: `queue_seconds` from arrival to first scheduling, `ttft_seconds` from
    arrival to the first token, `itl_seconds` the mean between two tokens of a stream, `e2e_seconds` from arrival to
    the end. `spans` is the engine's own account of the request's first sequence (each a
    `serving.contracts.messages.Span`, but its offset counts from the request's arrival), `params` what was asked of the
    sampler. `prompt_text` and `output_text` are None unless the tenant lets them be kept, both or neither, and once
    their time is over.
    """

    request_id = models.CharField(max_length=100, unique=True)
    pool = models.CharField(max_length=100)
    model = models.CharField(max_length=200)
    tenant = models.CharField(max_length=100, blank=True)
    tenant_id_then = models.BigIntegerField(null=True)
    key_prefix = models.CharField(max_length=16, blank=True)
    endpoint = models.CharField(max_length=20)
    is_streamed = models.BooleanField(default=False)
    arrived_at = models.DateTimeField()
    outcome = models.CharField(max_length=20)
    code = models.CharField(max_length=60, blank=True)
    num_choices = models.PositiveIntegerField(default=1)
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    queue_seconds = models.FloatField(null=True)
    ttft_seconds = models.FloatField(null=True)
    itl_seconds = models.FloatField(null=True)
    e2e_seconds = models.FloatField()
    num_preemptions = models.PositiveIntegerField(default=0)
    num_attempts = models.PositiveIntegerField(default=0)
    engine = models.CharField(max_length=100, blank=True)
    tunables_version = models.PositiveIntegerField(null=True)
    params = models.JSONField(default=dict)
    spans = models.JSONField(default=list)
    prompt_text = models.TextField(null=True)  # None is not kept, which is not the same as empty
    output_text = models.TextField(null=True)

    class Meta:
        ordering = ("-arrived_at", "-pk")
        indexes = (
            models.Index(fields=("-arrived_at", "-id"), name="requests_by_time"),
            models.Index(fields=("pool", "-arrived_at", "-id"), name="requests_of_pool_by_time"),
            models.Index(fields=("tenant", "-arrived_at", "-id"), name="requests_of_tenant_by_time"),
            models.Index(fields=("key_prefix", "-arrived_at", "-id"), name="requests_of_key_by_time"),
            models.Index(fields=("outcome", "-arrived_at", "-id"), name="requests_by_outcome_and_time"),
            models.Index(fields=("code", "-arrived_at", "-id"), name="requests_by_code_and_time"),
            models.Index(
                fields=("arrived_at",), condition=models.Q(prompt_text__isnull=False), name="requests_with_texts"
            ),
        )
        permissions = (("view_request_text", "Can read the prompts and answers that are kept"),)

    def __str__(self) -> str:
        return self.request_id


class Rollup(models.Model):
    """What was measured of a pool in one stretch of `seconds` (10, 60, 600 or 3600) from `starts_at`, a multiple of it
    since the epoch. `content` is a `serving.telemetry.rollups.RollupContent` in msgpack: mergeable, never an average of
    percentiles."""

    pool = models.CharField(max_length=100)
    seconds = models.PositiveIntegerField()
    starts_at = models.DateTimeField()
    content = models.BinaryField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("pool", "seconds", "starts_at"), name="one_rollup_a_stretch"),)
        indexes = (models.Index(fields=("seconds", "starts_at"), name="rollups_by_time"),)

    def __str__(self) -> str:
        return f"{self.pool}: {self.seconds} s from {self.starts_at}"


class PoolEvent(models.Model):
    """Something that happened to a pool and is marked in its charts, but for changes of tunables, which are versions.

    `kind` is a word of `serving.telemetry.events.EventKind`; `subject` names the engine or rule that it is about.
    `event_id` tells one from its repetition.
    """

    event_id = models.CharField(max_length=60, unique=True)
    pool = models.CharField(max_length=100)
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    subject = models.CharField(max_length=200, blank=True)
    text = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("-at", "-pk")
        indexes = (models.Index(fields=("pool", "-at"), name="events_of_pool_by_time"),)

    def __str__(self) -> str:
        return f"{self.kind} of {self.pool}"
