"""What a device says of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """How busy an accelerator is (0 to 1) and how much of its memory is in use, by anyone; None: it does not tell."""

    ratio: float | None = None
    memory_bytes: int | None = None


DeviceGauge = Callable[[], DeviceUsage]
"""Reads the device now; from any thread that nothing waits for: a driver may take seconds."""
