"""A step on its way from being planned to its result."""

from __future__ import annotations

import dataclasses

from serving.contracts.messages import SequenceKey
from serving.contracts.tunables import Tunables
from serving.engine.plan import AheadRunner, Launched, Runner, StepPlan, StepResult


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A plan that was given to a runner, and what it was made under. Times are seconds of the engine's clock.

    `hidden_seconds` is what it took to plan and launch it while the plan before was in flight; 0 where none was.
    """

    plan: StepPlan
    launched: Launched
    started_at: float
    scheduled_at: float
    hidden_seconds: float
    preempted_keys: tuple[SequenceKey, ...]
    tunables: Tunables
    tunables_version: int
    is_behind: bool

    @property
    def has_failed(self) -> bool:
        """Whether it is known already that no result will come."""
        return isinstance(self.launched, FailedLaunch)


@dataclasses.dataclass(frozen=True, slots=True)
class RunThrough:
    """A plan that is computed when it is collected: for runners that compute one at a time."""

    runner: Runner
    plan: StepPlan

    def collect(self) -> StepResult:
        """Compute it."""
        return self.runner.run(self.plan)


@dataclasses.dataclass(frozen=True, slots=True)
class FailedLaunch:
    """A plan that could not be launched: so its failure is told when its turn comes, after those before it."""

    error: Exception

    def collect(self) -> StepResult:
        """Raise what the launch raised."""
        raise self.error


def launch(runner: AheadRunner, plan: StepPlan) -> Launched:
    """Begin to compute `plan`; never raises."""
    try:
        return runner.launch(plan)
    except Exception as error:
        return FailedLaunch(error)
