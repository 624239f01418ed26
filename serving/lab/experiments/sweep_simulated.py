"""A pool that is only simulated, as a bench: an hour's sweep in seconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any, Final

from serving.contracts.quotas import Quotas
from serving.contracts.steps import KEPT_STEPS
from serving.contracts.tunables import Tunables
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.experiments.bench import Bench, BrokenOff, Watch
from serving.lab.experiments.evidence import Evidence
from serving.lab.simulator.rows import record_steps
from serving.lab.simulator.simulation import Simulation, simulate
from serving.lab.summaries import Outcome, RunSummary
from serving.lab.workloads.fitting_context import fitted_to
from serving.lab.workloads.workload import Workload
from serving.telemetry.conditions import Reading

_LOOK_SECONDS: Final = 0.2
_MOMENT_SECONDS: Final = 0.001
_MOST_RECORDED: Final = 120
"""Requests whose steps are recorded one by one."""


QuotasOf = Callable[[Workload], Mapping[str, Quotas]]
"""The quotas of a workload's tenants, by the names that it has of them."""


def _no_quotas(_workload: Workload) -> Mapping[str, Quotas]:
    return {}


class SimulatedBench:
    """Owns the tunables of a pool that is simulated; for one thread. `quotas_of` says how its door bounds a workload's
    tenants. With an `own` bench behind it, that is who is told and who says when to stop; nothing of the pool itself is
    changed."""

    def __init__(
        self,
        pool: str,
        tunables: Tunables,
        *,
        cost: CostModel,
        envelope: Envelope,
        num_processes: int | None = None,
        own: Bench | None = None,
        quotas_of: QuotasOf = _no_quotas,
    ) -> None:
        self.pool = pool
        self._tunables = tunables
        self._cost = cost
        self._envelope = envelope
        self._num_processes = num_processes
        self._own = own
        self._quotas_of = quotas_of
        self._outcomes: tuple[Outcome, ...] = ()
        self._last: tuple[Workload, Tunables] | None = None

    def play(
        self, workload: Workload, *, title: str, point: Mapping[str, Any], watch: Watch | None = None
    ) -> RunSummary:
        """Simulate the workload under the values so far; requests longer than the context are cut to it. With an own
        bench behind it, that happens in a process of its own, which ends at once when the experiment is to stop."""
        if watch is not None and (reason := watch()) is not None:
            raise BrokenOff(reason)
        fitted = fitted_to(workload, max_context_tokens=self._envelope.max_model_len)
        terms: dict[str, Any] = {
            "tunables": self._tunables,
            "envelope": self._envelope,
            "cost": self._cost,
            "num_engines": self._envelope.num_engines,
            "num_processes": self._num_processes,
            "keeps_outcomes": True,
            "quotas": dict(self._quotas_of(fitted)),
        }
        own = self._own
        simulation = simulate(fitted, **terms) if own is None else _simulate_elsewhere(fitted, terms, pause=own.pause)
        self._outcomes, self._last = simulation.outcomes, (fitted, self._tunables)
        return simulation.summary

    def evidence(self) -> Evidence:
        """The requests that were simulated last, and an engine's steps at its beginning. A simulation ends when its
        last request has: there is nothing that could be left."""
        if self._last is None:
            return Evidence(outcomes=())
        workload, tunables = self._last
        steps = record_steps(
            workload,
            tunables=tunables,
            envelope=self._envelope,
            cost=self._cost,
            num_requests=_MOST_RECORDED,
            most=KEPT_STEPS,
        )
        return Evidence(outcomes=self._outcomes, steps=(steps,))

    def tunables(self) -> dict[str, Any]:
        """The values so far."""
        return self._tunables.as_dict()

    def retune(self, changes: Mapping[str, Any], *, reason: str) -> int:
        """Simulate with these changes from now on; no version is stored, which 0 says. Raises as
        `Tunables.changed`."""
        self._tunables = self._tunables.changed(changes)
        return 0

    def overtaken(self) -> str | None:
        """None: nobody else changes what is simulated."""
        return None

    def others(self) -> Mapping[str, Reading]:
        """Nothing: nobody else sends anything."""
        return {}

    def pause(self, seconds: float) -> None:
        """Wait for nothing, but hear whether to stop."""
        if self._own is not None:
            self._own.pause(_MOMENT_SECONDS)

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Hand on what is to be shown, where somebody wants to know."""
        if self._own is not None:
            self._own.tell(progress)


def _simulate_elsewhere(workload: Workload, terms: dict[str, Any], *, pause: Callable[[float], None]) -> Simulation:
    # Not forked: whoever asks has threads, and connections.
    with multiprocessing.get_context("spawn").Pool(1) as process:
        simulating = process.apply_async(simulate, (workload,), terms)
        while not simulating.ready():
            simulating.wait(_LOOK_SECONDS)
            pause(_MOMENT_SECONDS)
        return simulating.get()


def simulated_bench_of(bench: Bench) -> SimulatedBench:
    """What stands for a bench's pool: its values, and what its steps cost as last fitted. Blocking."""
    from serving.lab.costs.store import latest_cost
    from serving.lab.runs.tenant_quotas import quotas_of_tenants

    cost, envelope = latest_cost(bench.pool)
    return SimulatedBench(
        bench.pool,
        Tunables().changed(bench.tunables()),
        cost=cost,
        envelope=envelope,
        num_processes=1,
        own=bench,
        quotas_of=quotas_of_tenants,
    )
