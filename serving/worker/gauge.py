"""The accelerator's part of an engine's snapshot."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from serving.contracts.messages import EngineSnapshot
from serving.engine.device import DeviceGauge, DeviceUsage

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0


class SampledGauge:
    """Owns the last reading of a device, which is read at most once a second; on the heartbeat's thread.

    A device that cannot be read tells nothing: no heartbeat fails for it.
    """

    def __init__(self, gauge: DeviceGauge, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gauge = gauge
        self._clock = clock
        self._usage = DeviceUsage()
        self._read_at: float | None = None
        self._works = True

    def complete(self, snapshot: EngineSnapshot) -> EngineSnapshot:
        """The snapshot with what the device tells."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= _EVERY_SECONDS:
            self._read_at = now
            self._usage = self._read()
        return msgspec.structs.replace(
            snapshot, accelerator_ratio=self._usage.ratio, accelerator_memory_bytes=self._usage.memory_bytes
        )

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
