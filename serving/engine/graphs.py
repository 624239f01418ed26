"""Work that a device repeats: given to it once, as a whole, instead of kernel by kernel each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], None]
"""Computes from tensors that stay where they are into tensors that stay where they are, and tells the host nothing."""

_WARM_UPS = 2
"""Runs before one is recorded: what is made at its first use (libraries' workspaces, compiled kernels, the tables of an
allocator) is made by then."""


class Recorder(Protocol):
    """Records work on one device; on the engine's thread."""

    def record(self, work: Work) -> Work:
        """What repeats `work`, which is done a few times before this returns. Raises `RuntimeError` for work that
        cannot be repeated without the host, `torch.OutOfMemoryError` where there is no memory for it."""
        ...


class PlainRecorder:
    """Records nothing: to repeat work is to do it again. Right on every device."""

    def record(self, work: Work) -> Work:
        """As `Recorder.record`."""
        work()
        return work


class CudaRecorder:
    """Owns the memory that all its CUDA graphs compute in, and the stream on which they are recorded: they are replayed
    one after another, so that each may use what the others leave. Those that need most should be recorded first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One for all: libraries keep a workspace of up to 32 MiB for each stream that they ever computed on.
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        """As `Recorder.record`; in the order that PyTorch's notes on CUDA graphs ask for: first on a stream of its own,
        then under capture. Other threads may use the device meanwhile."""
        here = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(here)
        graph = torch.cuda.CUDAGraph()
        # Around the capture too, which leaves its stream the current one where it fails.
        with torch.cuda.stream(self._aside):
            for _ in range(_WARM_UPS):
                work()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._aside, capture_error_mode="thread_local"):
                work()
        here.wait_stream(self._aside)
        return graph.replay


def graph_sizes(max_rows: int) -> list[int]:
    """The numbers of rows, ascending, that steps are padded to: few enough to record all of them, and close enough that
    little is computed for nothing. None where `max_rows` is 0."""
    return [size for size in (1, 2, 4, *range(8, max_rows + 1, 8)) if size <= max_rows]
