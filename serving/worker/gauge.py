"""The accelerator's part of an engine's snapshot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from serving.contracts.messages import EngineSnapshot
from serving.engine.device import DeviceGauge, DeviceUsage

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_LIFE_SECONDS = 5.0
"""An older reading tells nothing of the device any more."""


class SampledGauge:
    """Owns the thread that reads a device once a second, and the last reading.

    Nobody waits for the device, however slow its driver is; one that cannot be read tells nothing.
    """

    def __init__(
        self,
        gauge: DeviceGauge,
        *,
        every_seconds: float = _EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gauge = gauge
        self._every_seconds = every_seconds
        self._clock = clock
        self._last: tuple[DeviceUsage, float] | None = None
        self._works = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample_all, name="device-gauge", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> None:
        """End the thread; gives up after `timeout_seconds` where the driver does not return."""
        self._stopping.set()
        self._thread.join(timeout_seconds)

    def sample(self) -> None:
        """Read the device now, as the thread does: for as long as the driver takes."""
        usage = self._read()
        self._last = usage, self._clock()

    def complete(self, snapshot: EngineSnapshot) -> EngineSnapshot:
        """The snapshot with what the device told last; without, where that is five seconds old. From any thread."""
        usage = self._newest()
        return msgspec.structs.replace(
            snapshot,
            accelerator_id=usage.device_id,
            accelerator_ratio=usage.ratio,
            accelerator_memory_bytes=usage.memory_bytes,
            accelerator_memory_total_bytes=usage.memory_total_bytes,
            accelerator_power_watts=usage.power_watts,
            accelerator_power_limit_watts=usage.power_limit_watts,
            accelerator_celsius=usage.celsius,
            accelerator_clock_mhz=usage.clock_mhz,
            accelerator_slowed_by=usage.slowed_by,
        )

    def _newest(self) -> DeviceUsage:
        last = self._last
        if last is None or self._clock() - last[1] > _LIFE_SECONDS:
            return DeviceUsage()
        return last[0]

    def _sample_all(self) -> None:
        while not self._stopping.is_set():
            self.sample()
            self._stopping.wait(self._every_seconds)

    def _read(self) -> DeviceUsage:
        try:
            usage = self._gauge()
        except Exception as error:  # Whatever a driver raises.
            if self._works:
                logger.warning("the device cannot be read: %s", error)
            self._works = False
            return DeviceUsage()
        self._works = True
        return usage
