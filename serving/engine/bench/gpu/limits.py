"""A device's own limits in the same run: what every figure is a fraction of."""

from __future__ import annotations

import torch

from serving.engine.bench.gpu.timing import Stopwatch
from serving.engine.bench.limits import Limits, LimitsProbe


def measure_limits(device: torch.device, *, read_bytes: int, matmul_size: int) -> dict[str, float]:
    """Gigabytes a second that are read at best, and that are read and written by a copy; 10⁹ operations a second of the
    largest bf16 product."""
    probe = LimitsProbe(device.type, read_bytes=read_bytes, matmul_size=matmul_size)
    limits = probe.measure(num_tries=5)
    source = torch.randint(0, 256, (read_bytes // 2,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = Stopwatch(device).seconds(lambda: target.copy_(source))
    return {
        "read_gb_per_second": limits.bandwidth_gb_per_second,
        "copy_gb_per_second": round(2 * source.nbytes / copying / 1e9, 2),
        "matmul_gflops": limits.matmul_gflops,
    }


def as_limits(figures: dict[str, float]) -> Limits:
    """The limits of these figures: the better way to move bytes, since a step could move them so too."""
    bandwidth = max(figures["read_gb_per_second"], figures["copy_gb_per_second"])
    return Limits(bandwidth_gb_per_second=bandwidth, matmul_gflops=figures["matmul_gflops"])
