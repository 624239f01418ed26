"""Reading what the seven steps of a pool rest on. Blocking: async code calls it through `serving.threads.in_thread`."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from django.db.models import QuerySet
from django.utils import timezone
from redis import Redis

from serving.contracts.tunables import Tunables
from serving.lab.fingerprints import decode_fingerprint, glimpse_fingerprint
from serving.lab.models import Experiment, Run, SavedWorkload, State
from serving.lab.runs.own_keys import LAB_TENANT, prefixes_since
from serving.lab.steps.evidence import (
    Finding,
    Kind,
    Measurement,
    PoolEvidence,
    Ref,
    Result,
    Targets,
    Traffic,
    Try,
)
from serving.lab.steps.judging import Step, judge_steps
from serving.lab.steps.traffic import hold_against
from serving.lab.steps.words import overload_in_words, run_in_words, sweep_in_words, three_ways_in_words
from serving.lab.summaries import Figures
from serving.lab.workloads.evidence import Evidence
from serving.lab.workloads.words import slo_in_words
from serving.lab.workloads.workload import RequestClass, Slo
from serving.telemetry.request_shapes import has_shapes, newest_shapes
from serving.tuning.selectors import current_tunables

_OPEN: Final = (State.WAITING, State.RUNNING)
_ENDED_BADLY: Final = (State.FAILED, State.STOPPED)
_LOOKED_AT: Final = 20
_MOST_REQUESTS: Final = 2000
_RECENT: Final = datetime.timedelta(days=7)

Says = Callable[..., tuple[str, str]]
"""What came of it in words and what somebody should look at, from the parts of a result that were read."""


class _Measured(NamedTuple):
    """A measured workload without its arrivals."""

    name: str
    classes: tuple[RequestClass, ...]
    evidence: Evidence


def read_steps(pool: str, *, redis: Redis) -> tuple[Step, ...]:
    """The seven steps of a pool as they stand. Works without engines and without Redis, and says what is not known
    then. Raises `PoolNotFound`."""
    return judge_steps(read_evidence(pool, redis=redis))


def read_evidence(pool: str, *, redis: Redis) -> PoolEvidence:
    """What the steps of a pool rest on. Raises `PoolNotFound`."""
    in_force = current_tunables(pool)
    first = Tunables()
    measured = _newest_measured(pool)
    now = timezone.now()
    own_runs = Run.objects.filter(pool=pool, experiment=None)
    return PoolEvidence(
        pool=pool,
        now=glimpse_fingerprint(redis, pool),
        has_requests=has_shapes(pool),
        measured=None if measured is None else _measurement(measured),
        traffic=None if measured is None else _traffic(pool, measured, now=now),
        targets=Targets(
            ttft_ms=in_force.tunables.slo_ttft_ms,
            itl_ms=in_force.tunables.slo_itl_ms,
            first_ttft_ms=first.slo_ttft_ms,
            first_itl_ms=first.slo_itl_ms,
            version=in_force.version,
        ),
        sweep=_experiment("sweep", pool, ("result__says", "result__changes"), says=sweep_in_words),
        run=_run(own_runs),
        mixture=_run(own_runs.filter(workload__classes__1__isnull=False)),
        overload=_experiment("overload", pool, ("result__verdicts",), says=overload_in_words),
        three_ways=_experiment("three_ways", pool, ("result__conclusions",), says=three_ways_in_words),
    )


def _newest_measured(pool: str) -> _Measured | None:
    saved = SavedWorkload.objects.filter(origin="measured", evidence__pool=pool).order_by("-evidence__until")
    # The whole content may be a trace of many thousand requests.
    row = saved.values("name", "content__classes", "evidence").first()
    if row is None:
        return None
    classes = msgspec.convert(row["content__classes"], type=tuple[RequestClass, ...])
    return _Measured(row["name"], classes, msgspec.convert(row["evidence"], type=Evidence))


def _measurement(measured: _Measured) -> Measurement:
    evidence = measured.evidence
    first = Slo(ttft_ms=Tunables().slo_ttft_ms, itl_ms=Tunables().slo_itl_ms)
    chosen = [each for each in measured.classes if each.slo not in (first, Slo())]
    told = [f"{each.name} {slo_in_words(each.slo)}" for each in chosen]
    return Measurement(
        name=measured.name,
        tenant=evidence.tenant,
        until=evidence.until,
        num_requests=evidence.num_requests,
        num_classes=len(measured.classes),
        fingerprint=evidence.fingerprint,
        slo="; ".join(told),
    )


def _traffic(pool: str, measured: _Measured, *, now: datetime.datetime) -> Traffic:
    """The newest requests after the measurement, without those that the Lab sent itself, under its own name or that of
    another tenant."""
    evidence = measured.evidence
    since = max(evidence.until, now - _RECENT)
    found = newest_shapes(
        pool=pool,
        since=since,
        until=now,
        tenant=evidence.tenant,
        limit=_MOST_REQUESTS,
        without_keys=prefixes_since(since),
    )
    shapes = [each for each in found if each.tenant != LAB_TENANT or evidence.tenant == LAB_TENANT]
    return hold_against(
        measured.classes,
        prompts=[each.prompt_tokens for each in shapes if each.prompt_tokens > 0],
        answers=[each.completion_tokens for each in shapes if each.outcome == "finished" and each.completion_tokens],
        num_requests=len(shapes),
    )


def _experiment(kind: Kind, pool: str, parts: tuple[str, ...], *, says: Says) -> Finding:
    """The newest experiment of a kind that was played on the engines to its end."""
    rows = Experiment.objects.filter(kind=kind, pool=pool)
    played = rows.filter(state=State.FINISHED, result__isnull=False).exclude(plan__way="simulated")
    row = played.order_by("-ended_at").values("pk", "title", "ended_at", "fingerprint", *parts).first()
    result = None if row is None else _result(kind, row, says=says(*(row[part] for part in parts)))
    hint = ""
    if row is None:
        simulated = rows.filter(state=State.FINISHED, plan__way="simulated").order_by("-ended_at").first()
        hint = "" if simulated is None else f"{Ref(kind, simulated.pk).words.capitalize()} was simulated only."
    return Finding(result=result, newest=_newest_try(kind, rows, after=result), hint=hint)


def _run(rows: QuerySet[Run, Run]) -> Finding:
    """The newest run of these that has throughput, queue times, percentiles and memory."""
    parts = ("summary__total", "summary__peak_host_memory_bytes", "summary__peak_device_memory_bytes")
    finished = rows.filter(state=State.FINISHED, summary__isnull=False).order_by("-ended_at")
    hint = ""
    for row in finished.values("pk", "title", "ended_at", "fingerprint", *parts)[:_LOOKED_AT]:
        total = msgspec.convert(row["summary__total"], type=Figures)
        told = run_in_words(total, host_bytes=row[parts[1]], device_bytes=row[parts[2]])
        if not told.lacks:
            result = _result("run", row, says=(told.says, ""))
            return Finding(result=result, newest=_newest_try("run", rows, after=result))
        hint = hint or f"{Ref('run', row['pk']).words.capitalize()} has no {' and no '.join(told.lacks)}."
    return Finding(newest=_newest_try("run", rows, after=None), hint=hint)


def _result(kind: Kind, row: dict[str, Any], *, says: tuple[str, str]) -> Result:
    return Result(
        ref=Ref(kind, row["pk"]),
        title=row["title"],
        ended_at=row["ended_at"],
        fingerprint=decode_fingerprint(row["fingerprint"]),
        says=says[0],
        trouble=says[1],
    )


def _newest_try(kind: Kind, rows: QuerySet[Any, Any], *, after: Result | None) -> Try | None:
    """What waits or plays, or else what failed or was stopped after the newest result."""
    fields = ("pk", "state", "error")
    row = rows.filter(state__in=_OPEN).order_by("created_at").values(*fields).first()
    if row is None:
        ended = rows.filter(state__in=_ENDED_BADLY).order_by("-ended_at")
        row = (ended if after is None else ended.filter(ended_at__gt=after.ended_at)).values(*fields).first()
    return None if row is None else Try(ref=Ref(kind, row["pk"]), state=row["state"], error=row["error"])
