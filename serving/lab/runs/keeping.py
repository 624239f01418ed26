"""Keeping a run that was played elsewhere than in the Lab's process: by a command. Blocking."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import msgspec
from django.db import transaction
from redis import Redis

from serving.audit.services import record
from serving.contracts.actors import Author, name_of
from serving.lab.fingerprints import Fingerprint, glimpse_fingerprint
from serving.lab.models import Run, State
from serving.lab.packing import pack_outcomes
from serving.lab.playing.target import Target
from serving.lab.runs.services import LONGEST_TITLE
from serving.lab.summaries import Outcome, RunSummary
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.workload import Workload
from serving.tuning.selectors import current_version


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """On what a run is played: a pool's tunables and engines as they are at its beginning; empty for a server of which
    nothing is known."""

    pool: str = ""
    tunables: dict[str, Any] | None = None
    tunables_version: int | None = None
    fingerprint: Fingerprint = dataclasses.field(default_factory=Fingerprint)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run that was played: its requests, what they came to, and between which moments."""

    outcomes: Sequence[Outcome]
    summary: RunSummary
    is_whole: bool
    started_at: datetime.datetime
    ended_at: datetime.datetime


def read_setting(pool: str, *, redis: Redis) -> Setting:
    """The pool as it is now. Raises `PoolNotFound`."""
    version = current_version(pool)
    return Setting(
        pool=pool,
        tunables=version.values,
        tunables_version=version.number,
        fingerprint=glimpse_fingerprint(redis, pool),
    )


def keep_run(workload: Workload, target: Target, *, setting: Setting, kept: Kept, title: str, author: Author) -> Run:
    """Keep a run as the Lab's process would, without its keys, and write down who did."""
    state, error = _end_of(kept)
    with transaction.atomic():
        run = Run.objects.create(
            title=title[:LONGEST_TITLE],
            workload=workload_to_dict(workload),
            target=msgspec.to_builtins(target.without_keys()),
            pool=setting.pool,
            tunables=setting.tunables,
            tunables_version=setting.tunables_version,
            fingerprint=msgspec.to_builtins(setting.fingerprint),
            state=state,
            summary=msgspec.to_builtins(kept.summary),
            outcomes=pack_outcomes(kept.outcomes),
            error=error,
            author=name_of(author),
            created_at=kept.started_at,
            started_at=kept.started_at,
            ended_at=kept.ended_at,
        )
        record(
            "run ordered",
            actor=author,
            subject_kind="run",
            subject=str(run.pk),
            pool=setting.pool,
            changes={"workload": [None, workload.name], "url": [None, target.url]},
            reason="played by a command, and kept",
        )
    return run


def _end_of(kept: Kept) -> tuple[str, str]:
    total = kept.summary.total
    if total.num_requests and not total.num_finished:
        told = kept.summary.first_failure or ", ".join(kept.summary.refused_by_code) or "none came to its end"
        return State.FAILED, f"no request finished: {told}"[:500]
    return (State.FINISHED if kept.is_whole else State.STOPPED), ""
