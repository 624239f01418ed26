"""Memory in large pages: a step reads so many small ones that looking them up would slow it down."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch

_CHUNK_BYTES = 64 << 20
_LINE_BYTES = 64


def zeros_in_large_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """As `torch.zeros`, in large pages where the system has them; a page is taken when it is first written to.

    Raises MemoryError where there is not as much.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        pages = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError):
        raise MemoryError(f"no memory for {num_bytes} bytes") from None
    with contextlib.suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes].view(dtype).view(*shape)


class LargePages:
    """Owns memory that is handed out from large pages piece by piece, for what is kept as long as it itself."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of `tensor` that begins at a cache line. Raises MemoryError."""
        if self._used + tensor.nbytes > len(self._chunk):
            self._chunk = zeros_in_large_pages([max(_CHUNK_BYTES, tensor.nbytes)], torch.uint8)
            self._used = 0
        place = self._chunk[self._used : self._used + tensor.nbytes]
        self._used += -(-tensor.nbytes // _LINE_BYTES) * _LINE_BYTES
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
