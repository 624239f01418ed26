"""A run that goes wrong in its midst leaves what it knows, and goes on where it can."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from serving.engine.bench.gpu import parts
from serving.engine.bench.gpu.budget import Budget
from serving.engine.bench.gpu.parts import Bench
from serving.engine.bench.gpu.scale import DRY


def test_what_is_known_is_kept_when_a_run_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*arguments: object, **options: object) -> dict[str, float]:
        return {"read_gb_per_second": 2.0, "copy_gb_per_second": 1.0, "matmul_gflops": 3.0}

    def break_off(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, "measure_limits", measure)
    monkeypatch.setattr(parts, "check_kernels", break_off)
    kept: list[dict[str, Any]] = []
    bench = Bench(
        DRY,
        device=torch.device("cpu"),
        budget=Budget(1000),
        folder=tmp_path,
        keep=lambda figures: kept.append(copy.deepcopy(figures)),
    )
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert "limits" not in kept[0]
    assert kept[-1]["limits"]["read_gb_per_second"] == 2.0


def test_a_device_in_an_error_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an illegal access: whatever asks it fails, its allocator too."""

    def fail(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for name in ("measure_limits", "check_kernels"):
        monkeypatch.setattr(parts, name, fail)
    monkeypatch.setattr(parts, "_describe", lambda device: {"name": "none"})
    monkeypatch.setattr(Bench, "_start", fail)
    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    kept: list[dict[str, Any]] = []
    # Too little time for what would really use a device.
    bench = Bench(DRY, device=torch.device("cuda"), budget=Budget(77), folder=tmp_path, keep=kept.append)
    monkeypatch.setattr(bench, "_measure_transformers", fail)
    monkeypatch.setattr(bench, "_measure_fusing", fail)
    bench.run()
    reasons = {each["part"]: each["reason"] for each in kept[-1]["skipped"]}
    assert len(reasons) == 7
    assert all("illegal memory access" in reason for reason in reasons.values())
