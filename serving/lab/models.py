"""What the Lab keeps: workloads, runs, experiments, fitted costs, predictions, and the autopilot's moves."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class State(models.TextChoices):
    """How far work of the Lab is. `stopped`: an operator ended it; `failed`: it ended by itself, and says why."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class SavedWorkload(models.Model):
    """A workload by its name. `content` is a `serving.lab.workloads.workload.Workload`; `origin` is `written`,
    `measured` or `imported`; `evidence` is what a measured one was measured from and how well it fits. `revision` rises
    with every change."""

    name = models.CharField(max_length=64, unique=True)
    content = models.JSONField()
    origin = models.CharField(max_length=20)
    evidence = models.JSONField(default=dict)
    revision = models.PositiveIntegerField(default=1)
    author = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Experiment(models.Model):
    """Runs that belong together. `kind` is one of `serving.lab.experiments.kinds`; `plan` is what was asked for,
    `result` what came of it (a kind's own structs), `progress` what is said meanwhile. `fingerprint` says on what.
    `retuned` is what the pool's tunables go back to (`serving.lab.experiments.tuning`), null where they are as they
    were."""

    kind = models.CharField(max_length=20)
    pool = models.CharField(max_length=100)
    title = models.CharField(max_length=200)
    plan = models.JSONField()
    state = models.CharField(max_length=20, choices=State.choices, default=State.WAITING)
    progress = models.JSONField(default=dict)
    result = models.JSONField(null=True)
    retuned = models.JSONField(null=True)
    fingerprint = models.JSONField(default=dict)
    error = models.CharField(max_length=500, blank=True)
    stop_asked = models.BooleanField(default=False)
    author = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    beaten_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        indexes = (models.Index(fields=("kind", "pool", "-created_at"), name="experiments_by_kind"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class Run(models.Model):
    """One workload, played once. `workload` is the workload as it was played, `target` whom it was played against (a
    `serving.lab.playing.target.Target` without its keys), `tunables` the pool's values at its beginning (null: another
    server's). `summary` is a `serving.lab.summaries.RunSummary`, `outcomes` its requests (msgpack, compressed).
    `experiment` and `point` say what it was part of. `beaten_at` is when its player last gave a sign of life."""

    title = models.CharField(max_length=200)
    workload = models.JSONField()
    target = models.JSONField()
    pool = models.CharField(max_length=100, blank=True)
    tunables = models.JSONField(null=True)
    tunables_version = models.PositiveIntegerField(null=True)
    experiment = models.ForeignKey(Experiment, null=True, on_delete=models.CASCADE, related_name="runs")
    point = models.JSONField(default=dict)
    state = models.CharField(max_length=20, choices=State.choices, default=State.WAITING)
    progress = models.JSONField(default=dict)
    summary = models.JSONField(null=True)
    outcomes = models.BinaryField(null=True)
    fingerprint = models.JSONField(default=dict)
    error = models.CharField(max_length=500, blank=True)
    stop_asked = models.BooleanField(default=False)
    author = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    beaten_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        indexes = (models.Index(fields=("state", "-created_at"), name="runs_by_state"),)

    def __str__(self) -> str:
        return f"run {self.pk}"


class FittedCost(models.Model):
    """A `serving.lab.costs.model.CostModel` that was fitted to the records of a pool's engine. `envelope` is what its
    engine has room for, so that it can be simulated."""

    pool = models.CharField(max_length=100)
    content = models.JSONField()
    envelope = models.JSONField()
    fingerprint = models.JSONField(default=dict)
    fitted_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-fitted_at", "-pk")
        indexes = (models.Index(fields=("pool", "-fitted_at"), name="costs_of_pool_by_time"),)

    def __str__(self) -> str:
        return f"cost of {self.pool}"


class StepStock(models.Model):
    """The steps of a pool that are kept to fit its cost from. `content` is a packed `serving.lab.costs.stock.Stock` of
    steps on what `fingerprint` says, `read_up_to` the number of each engine's last step that was looked at."""

    pool = models.CharField(max_length=100, unique=True)
    content = models.BinaryField(null=True)
    read_up_to = models.JSONField(default=dict)
    fingerprint = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"steps of {self.pool}"


class Prediction(models.Model):
    """What a change was predicted to do. `workload` is what was simulated, `current` and `proposed` are tunables,
    `cost` is a `serving.lab.predictions.results.Basis`, `predicted` a `Predicted` of there. `version` is the version
    that was stored with the proposed values, if one was, and `measured` a `MeasuredFigures` of what happened under it
    (null: not known yet)."""

    pool = models.CharField(max_length=100)
    workload = models.JSONField()
    current = models.JSONField()
    proposed = models.JSONField()
    cost = models.JSONField()
    fingerprint = models.JSONField(default=dict)
    state = models.CharField(max_length=20, choices=State.choices, default=State.WAITING)
    predicted = models.JSONField(null=True)
    error = models.CharField(max_length=500, blank=True)
    version = models.PositiveIntegerField(null=True)
    measured = models.JSONField(null=True)
    measured_at = models.DateTimeField(null=True)
    author = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        indexes = (models.Index(fields=("pool", "-created_at"), name="predictions_of_pool"),)

    def __str__(self) -> str:
        return f"prediction {self.pk}"


class Autopilot(models.Model):
    """What holds a pool's SLO by itself. `terms` are what it may move and within which bounds; `paused_because` is
    empty while it works. It is off unless `is_on`."""

    pool = models.CharField(max_length=100, unique=True)
    is_on = models.BooleanField(default=False)
    terms = models.JSONField(default=dict)
    paused_because = models.CharField(max_length=300, blank=True)
    memory = models.JSONField(default=dict)
    changed_by = models.CharField(max_length=200, blank=True)
    changed_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"autopilot of {self.pool}"


class AutopilotMove(models.Model):
    """One step of an autopilot: which version it stored, why, and what became of it (`tried`, `kept`, `undone`,
    `overtaken` by a human's change), for which `verdict` gives the reason."""

    autopilot = models.ForeignKey(Autopilot, on_delete=models.CASCADE, related_name="moves")
    field = models.CharField(max_length=60)
    before = models.JSONField()
    after = models.JSONField()
    version = models.PositiveIntegerField()
    reason = models.CharField(max_length=500)
    figures_before = models.JSONField(default=dict)
    figures_after = models.JSONField(null=True)
    state = models.CharField(max_length=20, default="tried")
    verdict = models.CharField(max_length=500, blank=True)
    made_at = models.DateTimeField(default=timezone.now)
    judged_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-made_at", "-pk")

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.after}"
