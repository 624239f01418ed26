"""What a CUDA device says of itself."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from serving.engine.device import DeviceGauge, DeviceUsage
from serving.engine.memory import DeviceMemory
from serving.engine.nvml import NvmlDevice, find_nvml_device

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """While it lasts, no other process is within it for this `path`, whose file stays. One that waits says so; where
    the file cannot be written, as it is another user's, nobody waits."""
    try:
        lock = path.open("w")
    except OSError as error:
        _log.warning("engines that start at once may take each other's memory for their own: %s", error)
        lock = None
    if lock is None:
        yield
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("waiting until another engine has taken its memory of the device (%s)", path)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def gauge_of(device: torch.device) -> DeviceGauge:
    """Who reads `device`; of a CPU there is nothing to tell."""
    return CudaGauge(device) if device.type == "cuda" else DeviceUsage


def memory_of(device: torch.device) -> DeviceMemory | None:
    """The memory of an accelerator; None for a CPU, whose memory is the machine's."""
    return CudaMemory(device) if device.type == "cuda" else None


class CudaMemory:
    """The memory of a CUDA device, as PyTorch's allocator and the driver account for it; asked by the engine's thread.

    Owns nothing. What the driver itself keeps for this process counts as in use by others.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        properties = torch.cuda.get_device_properties(device)
        self._lock_path = Path(tempfile.gettempdir()) / f"footplate-{properties.uuid}.lock"
        self.name = f"{properties.name} ({device})"

    @property
    def total_bytes(self) -> int:
        """As `DeviceMemory.total_bytes`. Not asked before it must be: the driver takes memory for who asks, which is
        not to be while another engine has its turn."""
        return torch.cuda.mem_get_info(self._device)[1]

    def used_bytes(self) -> int:
        """As `DeviceMemory.used_bytes`."""
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        return total_bytes - free_bytes

    def kept_bytes(self) -> int:
        """As `DeviceMemory.kept_bytes`."""
        return torch.cuda.memory_reserved(self._device)

    def held_bytes(self) -> int:
        """As `DeviceMemory.held_bytes`."""
        return torch.cuda.memory_allocated(self._device)

    def peak_bytes(self) -> int:
        """As `DeviceMemory.peak_bytes`."""
        return torch.cuda.max_memory_allocated(self._device)

    def start_peak(self) -> None:
        """As `DeviceMemory.start_peak`."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def release(self) -> None:
        """As `DeviceMemory.release`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def turn(self) -> AbstractContextManager[None]:
        """As `DeviceMemory.turn`, among processes that share a folder for temporary files."""
        return exclusive(self._lock_path)


class CudaGauge:
    """Owns the driver's handle to a CUDA device, which it looks for when it is first read; called by one thread.

    The driver's library is asked rather than CUDA, which might wait for who computes. Only where that library does not
    tell the memory, CUDA does.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._found = False
        self._nvml: NvmlDevice | None = None

    def __call__(self) -> DeviceUsage:
        """What the device tells at this moment, for as long as the driver takes. Never raises for what it does not
        tell."""
        if not self._found:
            self._nvml = find_nvml_device(str(torch.cuda.get_device_properties(self._device).uuid))
            self._found = True
        usage = DeviceUsage() if self._nvml is None else self._nvml.read()
        return usage if usage.memory_bytes is not None else self._with_memory(usage)

    def _with_memory(self, usage: DeviceUsage) -> DeviceUsage:
        try:
            free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        except RuntimeError:
            return usage
        return dataclasses.replace(usage, memory_bytes=total_bytes - free_bytes, memory_total_bytes=total_bytes)
