"""Kernels compile for GPUs, which the interpreter does not show: it accepts what the compiler refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).resolve().parents[3]
AMPERE, HOPPER = "80", "90"
MOST_SPILLED_BYTES = 16
"""Of a thread: two or four numbers that are put aside once cost nothing that could be measured."""


@pytest.mark.parametrize(
    ("what", "dtype", "capability"),
    [
        ("attention", "bfloat16", HOPPER),
        ("attention", "float16", HOPPER),
        ("between products", "bfloat16", HOPPER),
        ("between products", "float16", AMPERE),
        ("products", "bfloat16", HOPPER),
        ("products", "float16", HOPPER),
        ("sampling", "bfloat16", HOPPER),
    ],
)
def test_kernels_compile_and_keep_to_their_registers(what: str, dtype: str, capability: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.gpu.compiling", what, dtype, capability],
        cwd=REPOSITORY,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert kernels
    assert [kernel for kernel in kernels if kernel["num_spilled_bytes"] > MOST_SPILLED_BYTES] == []
