"""What became of predictions: which version was stored with the values that were predicted, and what was measured
under it. Blocking; each may run twice, or at once.

Versions are stored without knowing of the Lab, so that they are looked for here.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import msgspec

from serving.contracts.errors import PoolNotFound
from serving.lab.models import Prediction, State
from serving.lab.predictions.results import MeasuredFigures, measured_figures
from serving.tuning.effect_keeping import KeptEffect, kept_effects
from serving.tuning.selectors import find_pool, tunables_of, version_numbered, versions_between

MEANT_FOR: Final = datetime.timedelta(hours=1)
"""So long after a prediction a version with its values is taken for what it was asked about."""
LEAST_SECONDS: Final = 180
"""A version that was in force for a shorter time says nothing: a cold burst would decide it."""
_LOOKED_BACK: Final = datetime.timedelta(hours=24)


def link_versions(*, now: datetime.datetime) -> int:
    """Note of every prediction that has none yet which version was stored with exactly its proposed values within the
    hour after it; of several that a version could be of, the newest before it. Gives how many found theirs."""
    since = now - _LOOKED_BACK
    waiting = Prediction.objects.filter(state=State.FINISHED, version=None, created_at__gte=since).order_by("-pk")
    num_linked = 0
    for prediction in waiting:
        number = _version_of(prediction)
        if number is None or Prediction.objects.filter(pool=prediction.pool, version=number).exists():
            continue
        num_linked += Prediction.objects.filter(pk=prediction.pk, version=None).update(version=number)
    return num_linked


def measure_predictions(*, now: datetime.datetime) -> int:
    """Fill in what was measured under the version of every prediction of which it is known by now: when tuning has kept
    the version's effect. Gives of how many."""
    num_measured = 0
    for prediction in Prediction.objects.exclude(version=None).filter(measured__isnull=True):
        found = _measured(prediction)
        if found is None:
            continue
        num_measured += Prediction.objects.filter(pk=prediction.pk, measured__isnull=True).update(
            measured=msgspec.to_builtins(found), measured_at=now
        )
    return num_measured


def figures_of(effect: KeptEffect) -> MeasuredFigures:
    """What was measured after a version was stored; a note where that is too little to be compared."""
    after = effect.after
    if after is None:
        return MeasuredFigures(note="nothing was measured under it")
    if after.seconds < LEAST_SECONDS:
        return MeasuredFigures(
            seconds=after.seconds,
            note=f"it was in force for {after.seconds} s before the next version: {LEAST_SECONDS} s are needed",
        )
    figures = measured_figures(after.intervals, after.means)
    return MeasuredFigures(
        seconds=after.seconds, figures=figures, note="" if figures else "there was too little traffic under it"
    )


def _version_of(prediction: Prediction) -> int | None:
    try:
        pool = find_pool(prediction.pool)
    except PoolNotFound:
        return None
    begin, end = prediction.created_at, prediction.created_at + MEANT_FOR
    proposed = tunables_of(prediction.proposed)
    stored = [version for version in versions_between(pool, begin, end) if begin <= version.created_at < end]
    fitting = [version.number for version in stored if tunables_of(version.values) == proposed]
    return min(fitting, default=None)


def _measured(prediction: Prediction) -> MeasuredFigures | None:
    """None where it is not known yet."""
    assert prediction.version is not None, "only those with a version are measured"
    version: Any = version_numbered(find_pool(prediction.pool), prediction.version)
    if version is None:
        return MeasuredFigures(note="its version is gone")
    canary = getattr(version, "canary", None)
    if canary is not None and canary.state == "withdrawn":
        return MeasuredFigures(note="it ran on one engine alone, and was taken back")
    effect = kept_effects([version]).get(version.number)
    return None if effect is None else figures_of(effect)
