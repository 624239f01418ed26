"""What an experiment works at: it plays runs, changes tunables, tells how far it is, and hears when it is to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from serving.lab.experiments.evidence import Evidence
from serving.lab.summaries import RunSummary
from serving.lab.workloads.workload import Workload
from serving.telemetry.conditions import Reading

Watch = Callable[[], str | None]
"""Asked about every second while a run plays: why it must end at once, or None."""


class Stopped(Exception):
    """An operator asked the experiment to end."""


class BrokenOff(Exception):
    """A run was ended by what watched it. `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Bench(Protocol):
    """One experiment's workplace, on the thread that plays it. Every call may raise `Stopped`."""

    @property
    def pool(self) -> str:
        """The pool that is experimented on."""
        ...

    def play(
        self, workload: Workload, *, title: str, point: Mapping[str, Any], watch: Watch | None = None
    ) -> RunSummary:
        """Play a workload against the pool, as a run of this experiment at `point`, and wait for its end.

        Raises `BrokenOff` where `watch` gave a reason: the run has ended then.
        """
        ...

    def evidence(self) -> Evidence:
        """What is known of the run that was played last beside its summary: waits for the server to come to rest and to
        write down what it did, for a while."""
        ...

    def tunables(self) -> dict[str, Any]:
        """The pool's values as the newest version has them."""
        ...

    def retune(self, changes: Mapping[str, Any], *, reason: str) -> int:
        """Store a version with these changes and wait until every engine runs it; its number. What the pool had before
        the experiment's first change comes back when the experiment ends, however it ends.

        Raises `serving.lab.experiments.tuning.Overtaken` where somebody else changed the pool meanwhile.
        """
        ...

    def overtaken(self) -> str | None:
        """Who else changed the pool since the experiment's last change, in words; None while nobody did."""
        ...

    def others(self) -> Mapping[str, Reading]:
        """What the pool's traffic of the last minute came to that is not this experiment's own, by the names of
        `serving.contracts.guardrails.GUARDRAIL_METRICS` (`serving.lab.experiments.others.read_others`)."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait, as long as nobody asks the experiment to end. A bench that is only simulated does not wait."""
        ...

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Keep what is to be shown while the experiment runs."""
        ...
