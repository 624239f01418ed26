"""Alert rules, the alerts that they raised, and who is still to be told."""

from __future__ import annotations

from django.db import models

from serving.telemetry.webhook_signing import new_salt


class AlertRule(models.Model):
    """A bound that somebody is told of when it is missed: a `serving.telemetry.conditions.Condition`, of one pool or,
    where `pool` is empty, of each. `webhook_url` is where it is posted to; empty: the console alone tells. What is
    posted is signed with the secret of `webhook_salt`: see `serving.telemetry.webhook_signing`."""

    name = models.CharField(max_length=100, unique=True)
    pool = models.CharField(max_length=100, blank=True)
    metric = models.CharField(max_length=40)
    is_above = models.BooleanField(default=True)
    bound = models.FloatField()
    for_seconds = models.FloatField()
    webhook_url = models.CharField(max_length=500, blank=True)
    webhook_salt = models.CharField(max_length=64, default=new_salt)
    is_enabled = models.BooleanField(default=True)
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Alert(models.Model):
    """One time that a rule was missed, from `began_at` (when it had lasted long enough) to `ended_at` (None: it goes
    on), and `why_ended` where it was not that the bound was met. `value` is the metric's at the beginning. Texts are
    those of the rule at that time, kept beyond it."""

    alert_id = models.CharField(max_length=200, unique=True)
    rule = models.ForeignKey(AlertRule, on_delete=models.SET_NULL, null=True, related_name="alerts")
    name = models.CharField(max_length=100)
    pool = models.CharField(max_length=100)
    text = models.CharField(max_length=300)
    value = models.FloatField()
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    why_ended = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ("-began_at", "-pk")
        indexes = (models.Index(fields=("-began_at", "-id"), name="alerts_by_time"),)

    def __str__(self) -> str:
        return f"{self.name} of {self.pool}"


class AlertNotice(models.Model):
    """A post that a webhook is owed. Told at least once: `due_at` is None once it was delivered or given up.

    `kind` is `began` or `ended`; `problem` is why the last attempt failed. `webhook_salt` signs where the rule is gone,
    or tells another address by now.
    """

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="notices")
    kind = models.CharField(max_length=10)
    url = models.CharField(max_length=500)
    webhook_salt = models.CharField(max_length=64, blank=True)
    num_attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(null=True, blank=True, db_index=True)
    delivered_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("alert", "kind"), name="one_notice_an_alert_and_kind"),)

    def __str__(self) -> str:
        return f"{self.kind}: {self.alert_id}"
