"""The arithmetic of a prediction, in a process of its own that ends when it takes too long.

Nothing that the other process runs needs Django, Redis or a model.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from serving.contracts.errors import DomainError, InvalidValue
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.lab.predictions.results import Basis, Predicted
from serving.lab.simulator.simulation import Simulation, simulate
from serving.lab.summaries import RunSummary
from serving.lab.workloads.fitting_context import clippings, fitted_to
from serving.lab.workloads.workload import Workload

_LOOK_SECONDS: Final = 0.1

LEFT_OUT: Final = (
    "The simulator leaves out: other work on the same machine, the network and the clients, and how answers' lengths "
    "would change. Requests are those of the workload, the same for both sides."
)


class BrokenOff(DomainError):
    """A prediction that was not computed to its end."""

    code = "prediction_broken_off"


def simulate_both(
    workload: Workload, *, current: Tunables, proposed: Tunables, basis: Basis, quotas: Mapping[str, Quotas]
) -> Predicted:
    """The same requests under either values, tenants held to their quotas. Raises `InvalidValue`."""
    context = basis.envelope.max_model_len
    fitted = fitted_to(workload, max_context_tokens=context)
    before, after = (_simulate(fitted, tunables, basis, quotas) for tunables in (current, proposed))
    return Predicted(
        current=_short(before),
        proposed=_short(after),
        simulated_seconds=before.simulated_seconds + after.simulated_seconds,
        wall_seconds=round(before.wall_seconds + after.wall_seconds, 3),
        notes=tuple(
            dict.fromkeys(
                (
                    *basis.notes,
                    *before.summary.notes,
                    *after.summary.notes,
                    *clippings(workload, max_context_tokens=context),
                    LEFT_OUT,
                )
            )
        ),
    )


def simulate_elsewhere(
    workload: Workload,
    *,
    current: Tunables,
    proposed: Tunables,
    basis: Basis,
    quotas: Mapping[str, Quotas],
    is_ending: Callable[[], bool],
    longest_seconds: float,
) -> Predicted:
    """As `simulate_both`, in another process. Raises `InvalidValue`, also where it takes longer than allowed, and
    `BrokenOff` as soon as `is_ending` says that this process ends."""
    until = time.monotonic() + longest_seconds
    terms = {"current": current, "proposed": proposed, "basis": basis, "quotas": quotas}
    # Not forked: whoever asks has threads, and connections.
    with multiprocessing.get_context("spawn").Pool(1) as process:
        simulating = process.apply_async(simulate_both, (workload,), terms)
        while not simulating.ready():
            if is_ending():
                raise BrokenOff("the process that computed it was stopped")
            if time.monotonic() > until:
                raise InvalidValue("workload", workload.name, f"one that is simulated within {longest_seconds:g} s")
            simulating.wait(_LOOK_SECONDS)
        return simulating.get()


def _simulate(workload: Workload, tunables: Tunables, basis: Basis, quotas: Mapping[str, Quotas]) -> Simulation:
    return simulate(
        workload,
        tunables=tunables,
        envelope=basis.envelope,
        cost=basis.cost,
        num_engines=basis.envelope.num_engines,
        num_processes=1,
        quotas=quotas,
    )


def _short(simulation: Simulation) -> RunSummary:
    return msgspec.structs.replace(simulation.summary, moments=(), notes=())
