"""Numbers on their way between a host and its device, where neither waits for the other."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
"""Bytes at whose multiples each array of a transfer begins: a tensor cannot begin in the midst of a number."""


def upload(*arrays: npt.NDArray[Any], device: torch.device) -> list[torch.Tensor]:
    """`arrays` as tensors on `device`, of their shapes and dtypes: for a CPU the very same memory, otherwise copies.

    All go in one transfer from pinned memory, which takes its place in the device's stream: from ordinary memory, the
    host would wait until the device has done all that it was given before.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    begins = _begins(arrays)
    host = _host_memory(begins[-1], device)
    _lay_out(arrays, begins, host.numpy())
    there = torch.empty(len(host), dtype=torch.uint8, device=device)
    there.copy_(host, non_blocking=True)
    return _views(there, begins, arrays)


def upload_into(target: torch.Tensor, array: npt.NDArray[Any]) -> None:
    """Make the first elements of `target` those of `array`, both one-dimensional and of one dtype, as `upload` does."""
    if target.device.type == "cpu":
        target[: len(array)].copy_(torch.from_numpy(array))
        return
    host = _host_memory(array.nbytes, target.device)
    host.numpy()[:] = array.view(np.uint8)
    target[: len(array)].copy_(host.view(target.dtype), non_blocking=True)


def _host_memory(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory that `device` may read while the host goes on. It may be let go at once: its allocator gives it out again
    only when the device has read it."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def _begins(arrays: Sequence[npt.NDArray[Any]]) -> list[int]:
    """Where each array begins, and where all end, in bytes."""
    sizes = (-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)
    return list(itertools.accumulate(sizes, initial=0))


def _lay_out(arrays: Sequence[npt.NDArray[Any]], begins: Sequence[int], octets: npt.NDArray[np.uint8]) -> None:
    for begin, array in zip(begins, arrays, strict=False):
        octets[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _views(octets: torch.Tensor, begins: Sequence[int], like: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """The tensors that the arrays `like` are when they are laid out in `octets`."""
    return [
        octets[begin : begin + array.nbytes].view(_dtype_of(array)).view(array.shape)
        for begin, array in zip(begins, like, strict=False)
    ]


def _dtype_of(array: npt.NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype


@dataclasses.dataclass(frozen=True, slots=True)
class _Parcel:
    """Copied bytes of all tensors one after another, and what tells when they have come."""

    octets: torch.Tensor
    arrived: torch.cuda.Event


class Download:
    """Owns tensors of one device that the host is to read, from when they are computed until then; on the engine's
    thread.

    First all are added, then they are sent, in one copy; only `wait` waits for the device, and only for what was
    computed before `send`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: list[torch.Tensor] = []
        self._parcel: _Parcel | None = None
        self._arrays: list[npt.NDArray[Any]] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Take `tensor` along, which is to change only after `send`; returns the place under which it can be read."""
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def send(self) -> None:
        """Have the device copy what was added, when it has computed it; once."""
        if self._device.type == "cpu":
            self._arrays = [tensor.numpy().copy() for tensor in self._tensors]
        elif self._tensors:
            self._parcel = _send(pack(self._tensors))

    def wait(self) -> None:
        """Return when all has come; raises what went wrong on the device."""
        if self._parcel is None:
            return
        self._parcel.arrived.synchronize()
        self._arrays = unpack(self._parcel.octets.numpy(), self._tensors)
        self._parcel = None

    def read(self, place: int) -> npt.NDArray[Any]:
        """What was added under `place`, after `wait`."""
        return self._arrays[place]


def _send(octets: torch.Tensor) -> _Parcel:
    there = torch.empty(len(octets), dtype=torch.uint8, pin_memory=True)
    there.copy_(octets, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return _Parcel(there, arrived)


def pack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The bytes of all `tensors` one after another, uint8 `[num_bytes]`."""
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


def unpack(octets: npt.NDArray[np.uint8], like: list[torch.Tensor]) -> list[npt.NDArray[Any]]:
    """The arrays that `pack` made `octets` of, of the shapes and dtypes of the tensors `like`."""
    ends = list(itertools.accumulate((tensor.nbytes for tensor in like), initial=0))
    return [
        octets[begin:end].view(_numpy_dtype(tensor)).reshape(tuple(tensor.shape))
        for (begin, end), tensor in zip(itertools.pairwise(ends), like, strict=True)
    ]


def _numpy_dtype(tensor: torch.Tensor) -> np.dtype[Any]:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype
