"""What NVIDIA's driver tells of a GPU, through its management library (NVML). No torch here."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from serving.engine.device import DeviceUsage, SlowedBy

_log = logging.getLogger(__name__)
_Figure = TypeVar("_Figure")

_POWER = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
_HEAT = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
_ANY = pynvml.nvmlClocksEventReasonHwSlowdown
"""Set beside the reason proper by drivers that tell it, and alone by those that do not."""


class NvmlDevice:
    """Owns the library's handle to one GPU, or to one part of a GPU that is divided (MIG).

    Each figure is on its own: what a driver does not support, or fails to read, is None. Of a part, utilisation, power
    and clock are not told, since the board's are those of others too; it is as hot as its board, and as much slowed.
    """

    def __init__(self, uuid: str, handle: Any, *, board: Any | None = None) -> None:
        """`board` is the handle of the GPU that a part belongs to; None for a whole one."""
        self._uuid = uuid
        self._handle = handle
        self._board = board

    def read(self) -> DeviceUsage:
        """What the driver tells at this moment; asks nothing of CUDA."""
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        board = self._handle if self._board is None else self._board
        told = DeviceUsage(
            device_id=self._uuid,
            memory_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            celsius=_ask(pynvml.nvmlDeviceGetTemperature, board, pynvml.NVML_TEMPERATURE_GPU),
            slowed_by=_slowed_by(_ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, board)),
        )
        return told if self._board is not None else _with_own_figures(told, self._handle)


def find_nvml_device(uuid: str) -> NvmlDevice | None:
    """The device that CUDA knows by `uuid` (hexadecimal, without what says of what kind it is), whichever number the
    driver gives it; None, with a line in the log, where the library or the device is not to be had.

    Initialises the library for the process, once a call.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.warning("the GPU's power, temperature and utilisation are not told: NVML does not start (%s)", error)
        return None
    whole, part = f"GPU-{uuid}", f"MIG-{uuid}"
    handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, whole)
    if handle is not None:
        return NvmlDevice(whole, handle)
    handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, part)
    board = None if handle is None else _ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    if board is not None:
        return NvmlDevice(part, handle, board=board)
    _log.warning("the GPU's power, temperature and utilisation are not told: NVML knows no device %s", uuid)
    return None


def _with_own_figures(told: DeviceUsage, handle: Any) -> DeviceUsage:
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return dataclasses.replace(
        told,
        ratio=None if rates is None else rates.gpu / 100,
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if limit is None else limit / 1000,
        clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
    )


def _ask(question: Callable[..., _Figure], *about: Any) -> _Figure | None:
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None


def _slowed_by(reasons: int | None) -> tuple[SlowedBy, ...]:
    """Of the reasons for which clocks are lower than they could be, those that an operator can do something about."""
    if reasons is None:
        return ()
    told: list[SlowedBy] = []
    if reasons & _POWER:
        told.append("power")
    if reasons & _HEAT:
        told.append("heat")
    if reasons & _ANY and not told:
        told.append("hardware")
    return tuple(told)
