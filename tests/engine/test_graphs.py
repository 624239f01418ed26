"""How CUDA graphs are recorded, as far as the host has a part in it: no device is here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from serving.engine.graphs import CudaRecorder


class _Stream:
    def __init__(self, *_: object) -> None:
        self.awaited: list[_Stream] = []

    def wait_stream(self, other: _Stream) -> None:
        self.awaited.append(other)


class _Cuda:
    """Stands for `torch.cuda`. Owns which stream is the current one, and those on which something was computed."""

    Stream = _Stream

    def __init__(self) -> None:
        self.here = self.current = _Stream()
        self.worked_on: list[_Stream] = []
        self.is_capturing = False

    class CUDAGraph:
        def replay(self) -> None: ...

    def graph_pool_handle(self) -> str:
        return "pool"

    def current_stream(self, device: torch.device) -> _Stream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, graph: Any, *, pool: str, stream: _Stream | None = None, **_: Any) -> Iterator[None]:
        """As PyTorch's: a capture that fails raises before the stream is the one that it was."""
        before, self.current = self.current, stream or _Stream()
        self.is_capturing = True
        try:
            yield
        except RuntimeError:
            raise RuntimeError("the capture failed due to an error before") from None
        finally:
            self.is_capturing = False
        self.current = before

    def work(self) -> None:
        self.worked_on.append(self.current)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    found = _Cuda()
    monkeypatch.setattr(torch, "cuda", found)
    return found


def test_all_is_recorded_on_one_stream_beside_the_current_one(cuda: _Cuda) -> None:
    """Each stream more would have workspaces of its own for good."""
    recorder = CudaRecorder(torch.device("cuda"))
    for _ in range(3):
        recorder.record(cuda.work)
    assert len(set(cuda.worked_on)) == 1
    assert cuda.worked_on[0].awaited == [cuda.here] * 3
    assert cuda.here.awaited == [cuda.worked_on[0]] * 3
    assert cuda.current is cuda.here


def test_a_recording_that_fails_leaves_the_current_stream(cuda: _Cuda) -> None:
    def work() -> None:
        cuda.work()
        if cuda.is_capturing:
            raise RuntimeError("not permitted while a stream is captured")

    with pytest.raises(RuntimeError, match="capture failed"):
        CudaRecorder(torch.device("cuda")).record(work)
    assert cuda.current is cuda.here
