"""What the machine itself can do at this moment: memory bandwidth, and the rate of bf16 matrix products.

A shared machine's rates drift by a factor within minutes, so a figure means something beside those of the same run.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import linear

_READ_BYTES = 512 * 2**20
_MATMUL_SIZES = {"cpu": 2048, "cuda": 8192}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The best of several tries: gigabytes a second read by all threads, and 10⁹ operations a second."""

    bandwidth_gb_per_second: float
    matmul_gflops: float


class LimitsProbe:
    """Owns the memory that is read to measure a device's limits; on the engine's thread, between steps."""

    def __init__(self, device: str = "cpu", *, read_bytes: int = _READ_BYTES, matmul_size: int | None = None) -> None:
        # Far more than any cache holds, and written, so that every page is memory of its own.
        self._doubles = torch.ones(read_bytes // 8, dtype=torch.float64, device=device)
        size = matmul_size or _MATMUL_SIZES[device]
        self._left, self._right = torch.randn(2, size, size, device=device).to(torch.bfloat16)

    @torch.inference_mode()
    def measure(self, *, num_tries: int = 3) -> Limits:
        """The limits at this moment, the best of `num_tries` of each way of measuring."""
        # Which reduction reads fastest depends on the processor: the best of them is nearest the memory's rate.
        doubles, floats = self._doubles, self._doubles.view(torch.float32)
        ways = (doubles.sum, doubles.amax, floats.amax, lambda: torch.dot(floats, floats), doubles.count_nonzero)
        read_seconds = min(self._fastest(way, num_tries) for way in ways)
        matmul_seconds = self._fastest(lambda: linear(self._left, self._right), num_tries)
        return Limits(
            bandwidth_gb_per_second=round(doubles.nbytes / read_seconds / 1e9, 2),
            matmul_gflops=round(2 * self._left.shape[0] ** 3 / matmul_seconds / 1e9, 1),
        )

    def _fastest(self, work: Callable[[], object], num_tries: int) -> float:
        seconds = []
        for _ in range(1 + num_tries):  # the first prepares
            began = time.perf_counter()
            work()
            if self._left.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return min(seconds[1:])


def median_limits(measured: Sequence[Limits]) -> Limits:
    """The median of each limit."""
    return Limits(
        bandwidth_gb_per_second=statistics.median(limits.bandwidth_gb_per_second for limits in measured),
        matmul_gflops=statistics.median(limits.matmul_gflops for limits in measured),
    )
