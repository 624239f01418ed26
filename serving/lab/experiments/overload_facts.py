"""What an overload test is judged by, and how a verdict is worded. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from serving.lab.experiments.capacity import Capacity
from serving.lab.experiments.evidence import Evidence
from serving.lab.experiments.overload_plan import Criteria
from serving.lab.experiments.overload_results import Judged, Stage, Verdict
from serving.lab.summaries import Outcome, RunSummary
from serving.lab.workloads.workload import Workload

WAITED_CODES: Final = ("queue_timeout",)
"""Refusals after a wait: by `max_queue_wait_ms`, not at the door."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the criteria are judged by. `tunables` are the pool's values while it was overloaded, `stages` the
    stages in turn, the first and the last of them calm."""

    workload: Workload
    summary: RunSummary
    evidence: Evidence
    tunables: dict[str, Any]
    capacity: Capacity
    stages: tuple[Stage, ...]
    criteria: Criteria

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The requests."""
        return self.evidence.outcomes

    @property
    def top(self) -> Stage:
        """The stage with the highest load."""
        return max(self.stages, key=lambda stage: stage.multiple)

    @property
    def refused(self) -> list[Outcome]:
        """The requests that were refused, whenever."""
        return [each for each in self.outcomes if each.ending == "refused"]


def verdict(name: str, title: str, bound: str, measured: str, judged: Judged, evidence: str) -> Verdict:
    """One criterion and what became of it."""
    return Verdict(name=name, title=title, bound=bound, measured=measured, judged=judged, evidence=evidence)


def judged_by(is_passed: bool) -> Judged:  # noqa: FBT001
    """The word for whether a criterion is met."""
    return "passed" if is_passed else "failed"


def why_unknown(facts: Facts, otherwise: str) -> str:
    """Why nothing is known of refusals, or `otherwise`."""
    if facts.summary.is_simulated:
        return "a simulated door sends no headers"
    return "nobody was refused" if not facts.refused else otherwise


def codes_of(outcomes: Sequence[Outcome]) -> str:
    """How many there are of each code, the commonest first, in words."""
    counts = Counter(each.code or "none" for each in outcomes)
    return ", ".join(f"{code} {count}" for code, count in counts.most_common()) or "none"
