"""Every contender in turn, round after round: what a machine whose rates drift allows to be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.bench.offline import ContenderFailed

Say = Callable[[str], None]
Measure = Callable[[str, int], Mapping[str, Any]]
"""Figures of a workload in a round (0 …); raises `ContenderFailed`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contender as it takes part: in one form (engine or http), in some workloads."""

    name: str
    form: str
    workloads: Sequence[str]
    measure: Measure


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one entrant did with one workload in one round."""

    workload: str
    form: str
    contender: str
    round: int
    figures: Mapping[str, Any]


@dataclasses.dataclass(slots=True)
class Findings:
    """Owns what a run found; filled as it goes, so that a failure loses nothing that was measured before it."""

    measurements: list[Measurement] = dataclasses.field(default_factory=list)
    missing: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """By contender, what it needs and is not there."""
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    """By contender and form, why it was not measured, or not further."""
    idle_core_ratio: dict[str, float] = dataclasses.field(default_factory=dict)
    """Share of a core that each server uses while nobody asks it anything."""

    def note_problem(self, name: str, form: str, problem: object) -> None:
        """Write down why something is not measured further."""
        self.problems[f"{name} ({form})"] = str(problem)


def take_turns(
    workloads: Sequence[str], entrants: Sequence[Entrant], findings: Findings, *, repeats: int, say: Say
) -> None:
    """Measure each workload in `repeats` rounds, in each of which every entrant has one turn.

    Who fails is left out of what follows, and the reason is noted.
    """
    failed: set[str] = set()
    for workload in workloads:
        for number in range(repeats):
            for entrant in entrants:
                if workload not in entrant.workloads or entrant.name in failed:
                    continue
                try:
                    figures = entrant.measure(workload, number)
                except ContenderFailed as problem:
                    failed.add(entrant.name)
                    findings.note_problem(entrant.name, entrant.form, problem)
                    say(f"{entrant.name} is left out from here: {problem}")
                    continue
                findings.measurements.append(
                    Measurement(
                        workload=workload, form=entrant.form, contender=entrant.name, round=number, figures=figures
                    )
                )
                rate = figures["output_tokens_per_second"]
                say(f"{workload} {entrant.form}, round {number + 1}, {entrant.name}: {rate} tokens/s")
