"""What an autopilot makes of an experiment's changes: it lets them be, and goes on once they are taken back. Blocking.

An experiment stores versions of its own, and puts back what was there before. That is nobody who knows better: the
autopilot is suspended meanwhile, not paused, and takes up its moves where it left them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from serving.lab.autopilot.deciding import Memory
from serving.lab.experiments.tuning import experiment_behind
from serving.lab.models import Experiment, Run, State
from serving.tuning.models import Pool, TunablesVersion

AFTERMATH_SECONDS: Final = 60.0
"""Figures are of the last minute: for so long they tell of the Lab's load after it is over."""


def newest_of_others(pool: Pool, memory: Memory) -> TunablesVersion | None:
    """The newest version that the autopilot does not know of and no experiment has stored; None where there is none."""
    if memory.version is None:
        return None
    unknown = TunablesVersion.objects.filter(pool=pool, number__gt=memory.version).order_by("-number")
    return next((each for each in unknown if experiment_behind(pool.name, each.author) is None), None)


def with_newest(memory: Memory, newest: TunablesVersion) -> Memory:
    """What is remembered once all newer versions are known to be of experiments: what was there before them, too."""
    if memory.version is None or memory.version == newest.number:
        return msgspec.structs.replace(memory, version=newest.number)
    before = memory.version if memory.before_experiment is None else memory.before_experiment
    return msgspec.structs.replace(memory, version=newest.number, before_experiment=before)


def suspended(memory: Memory, *, now: float) -> Memory:
    """While the Lab loads the pool, and for as long as figures tell of it: a move on trial is judged by what comes
    after."""
    trial = memory.trial
    return msgspec.structs.replace(
        memory,
        held_until=now + AFTERMATH_SECONDS,
        trial=None if trial is None else msgspec.structs.replace(trial, made_at=max(trial.made_at, now)),
    )


def what_the_lab_does(pool: str) -> str:
    """Why the Lab holds an autopilot up, in words; empty where it does not."""
    if Experiment.objects.filter(pool=pool, state=State.RUNNING).exists():
        return "waits while the Lab plays an experiment on this pool"
    if Run.objects.filter(pool=pool, state=State.RUNNING).exists():
        return "waits while the Lab plays a run on this pool"
    left = Experiment.objects.filter(pool=pool, retuned__isnull=False).first()
    return "" if left is None else f"waits until the tunables are back that {left} changed"


def is_as_before(pool: Pool, memory: Memory, newest: TunablesVersion) -> bool:
    """Whether the values are those from before the experiments, so that everything that is remembered holds."""
    if memory.before_experiment is None:
        return True
    before = TunablesVersion.objects.filter(pool=pool, number=memory.before_experiment).first()
    return before is not None and before.values == newest.values
