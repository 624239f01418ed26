"""How long the phases of a step took, on a device that the host does not wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from serving.engine.plan import StepTimes


class Phases(Protocol):
    """Owns the moments at which one step's phases ended; on the engine's thread."""

    def prepared(self) -> None:
        """All that the forward pass needs is on its way to the device."""
        ...

    def computed(self) -> None:
        """The device has been given the forward pass."""
        ...

    def sampled(self) -> None:
        """The device has been given all else."""
        ...

    def times(self, *, linear_seconds: float, attention_seconds: float) -> StepTimes:
        """When the step has been collected."""
        ...


class HostPhases:
    """The moments of a step that the host computes itself, by its `clock`. Sampling ends where it is collected."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._prepared = self._computed = self._began

    def prepared(self) -> None:
        """As `Phases.prepared`."""
        self._prepared = self._clock()

    def computed(self) -> None:
        """As `Phases.computed`."""
        self._computed = self._clock()

    def sampled(self) -> None:
        """As `Phases.sampled`: it ends later."""

    def times(self, *, linear_seconds: float, attention_seconds: float) -> StepTimes:
        """As `Phases.times`."""
        return StepTimes(
            prepare_seconds=self._prepared - self._began,
            forward_seconds=self._computed - self._prepared,
            sample_seconds=self._clock() - self._computed,
            linear_seconds=linear_seconds,
            attention_seconds=attention_seconds,
        )


class StreamPhases:
    """The moments of a step on a GPU: preparation by the host's `clock`, the rest by events in the stream, which say
    what the device was busy for and not how long the host waited. What the host prepares while the device computes the
    step before costs no time of the device."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._prepared = clock()
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]

    def prepared(self) -> None:
        """As `Phases.prepared`."""
        self._prepared = self._clock()
        self._events[0].record()

    def computed(self) -> None:
        """As `Phases.computed`."""
        self._events[1].record()

    def sampled(self) -> None:
        """As `Phases.sampled`."""
        self._events[2].record()

    def times(self, *, linear_seconds: float, attention_seconds: float) -> StepTimes:
        """As `Phases.times`; the events are over where the tokens have come, which were computed before."""
        prepared, computed, sampled = self._events
        return StepTimes(
            prepare_seconds=self._prepared - self._began,
            forward_seconds=prepared.elapsed_time(computed) / 1000,
            sample_seconds=computed.elapsed_time(sampled) / 1000,
            linear_seconds=linear_seconds,
            attention_seconds=attention_seconds,
        )
