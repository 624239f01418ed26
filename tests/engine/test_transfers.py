"""What goes to a device and comes back is what was sent, however many tensors share a copy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from serving.engine import phases, transfers
from serving.engine.phases import StreamPhases
from serving.engine.transfers import Download, pack, unpack, upload, upload_into

pytestmark = pytest.mark.heavy

_CPU = torch.device("cpu")
_ARRAYS: tuple[npt.NDArray[Any], ...] = (
    np.arange(5, dtype=np.int64),
    np.asarray([True, False, True]),
    np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
    np.empty((0, 3), dtype=np.int64),
    np.asarray([0.1, 0.2, 0.3]),
    np.arange(7, dtype=np.uint8),
    np.arange(12, dtype=np.int32).reshape(3, 4).T,
)


def test_a_cpu_is_given_the_memory_itself() -> None:
    (tensor,) = upload(_ARRAYS[2], device=_CPU)
    assert tensor.data_ptr() == _ARRAYS[2].ctypes.data


def test_arrays_share_a_copy_and_come_as_they_were() -> None:
    begins = transfers._begins(_ARRAYS)
    octets = torch.zeros(begins[-1], dtype=torch.uint8)
    transfers._lay_out(_ARRAYS, begins, octets.numpy())
    for array, tensor in zip(_ARRAYS, transfers._views(octets, begins, _ARRAYS), strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
    uploaded = upload(*_ARRAYS, device=torch.device("meta"))
    assert [tuple(tensor.shape) for tensor in uploaded] == [array.shape for array in _ARRAYS]
    assert upload(device=torch.device("meta")) == []


def test_a_part_of_a_tensor_is_replaced() -> None:
    target = torch.full((6,), -1)
    upload_into(target, np.arange(4))
    assert target.tolist() == [0, 1, 2, 3, -1, -1]


def test_tensors_share_a_copy_back_and_come_as_they_were() -> None:
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in _ARRAYS]
    for array, found in zip(_ARRAYS, unpack(pack(tensors).numpy(), tensors), strict=True):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


class _Event:
    """A moment of a stream that has come when it is waited for."""

    moments = itertools.count(step=2)

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.moment = 0
        self.waited = False

    def record(self) -> None:
        self.moment = next(self.moments)

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end: _Event) -> float:
        return float(end.moment - self.moment)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_read_is_what_was_sent(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of the tensors afterwards; on a GPU it is not touched before it has come."""
    event = _Event()
    monkeypatch.setattr(transfers, "_send", lambda octets: transfers._Parcel(octets.clone(), event))  # type: ignore[arg-type]
    download = Download(torch.device(device))
    tensors = [torch.arange(4), torch.tensor([0.5, 1.5]), torch.tensor([True])]
    places = [download.add(tensor) for tensor in tensors]
    download.send()
    for tensor in tensors:
        tensor.zero_()
    assert not event.waited
    download.wait()
    assert event.waited == (device == "cuda")
    assert [download.read(place).tolist() for place in places] == [[0, 1, 2, 3], [0.5, 1.5], [True]]


def test_phases_of_a_stream_are_what_the_device_was_busy_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases.torch.cuda, "Event", _Event)
    ticks = itertools.count()
    step = StreamPhases(lambda: float(next(ticks)))
    step.prepared()
    step.computed()
    step.sampled()
    times = step.times(linear_seconds=0.0, attention_seconds=0.0)
    assert (times.prepare_seconds, times.forward_seconds, times.sample_seconds) == (1.0, 0.002, 0.002)
