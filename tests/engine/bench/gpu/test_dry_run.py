"""The whole script on a CPU, at a tiny size."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_everything_is_measured_and_nothing_left_out(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "serving.engine.bench.gpu", "--dry-run", "--seconds", "100000", "--json", told],
        cwd=REPOSITORY,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(told.read_text())
    assert figures["skipped"] == []
    assert all(check["passed"] for check in figures["kernels"])
    assert len({check["kernel"] for check in figures["kernels"]}) > 5
    tiny = figures["models"]["tiny"]
    assert [each["batch"] for each in tiny["decoding"]] == [1, 2]
    assert all(each["tokens_per_second"] > 0 for each in tiny["decoding"] + tiny["prefill"] + tiny["transformers"])
    assert tiny["host"][0]["step_ms_without_look_ahead"] > 0
    assert tiny["speculation"][0]["ratio"] > 0
    for kind in ("int4", "fp8"):
        assert figures["models"][f"tiny {kind}"]["decoding"][0]["tokens_per_second"] > 0
    assert {each["work"] for each in figures["fused"]} >= {"norm", "gate", "int4 product"}
    assert "DIFFERS" not in done.stdout
    assert done.stdout.splitlines()[-1] == f"all figures: {told}"


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_without_time_everything_is_left_out_and_the_script_says_so(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    done = subprocess.run(
        [sys.executable, "-m", "serving.engine.bench.gpu", "--dry-run", "--seconds", "1", "--json", told],
        cwd=REPOSITORY,
        env=dict(os.environ) | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    figures = json.loads(told.read_text())
    assert figures["skipped"][0]["part"] == "limits"
    assert done.stdout.count("NOT MEASURED") == len(figures["skipped"]) > 4


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["torch", "triton", "msgspec"])
def test_a_package_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    """Another of its name, found first, stands for one that is not there."""
    absent = f"raise ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})"
    (tmp_path / f"{name}.py").write_text(absent)
    done = subprocess.run(
        [sys.executable, "-m", "serving.engine.bench.gpu", "--dry-run", "--json", tmp_path / "told.json"],
        cwd=REPOSITORY,
        env=dict(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"{name} is not installed; needed are torch, triton, msgspec, numpy, safetensors"
    )
    assert "Traceback" not in done.stderr
