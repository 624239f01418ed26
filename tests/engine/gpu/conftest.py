"""Kernels for accelerators are tested in Triton's interpreter, on the CPU.

It computes `tl.dot` of bf16 operands wrongly and says nothing: tests here compute in fp16 and fp32.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

# Read when a kernel is defined: before any module with kernels is imported.
os.environ["TRITON_INTERPRET"] = "1"

_WITHOUT_TRITON = importlib.util.find_spec("triton") is None
collect_ignore_glob = ["test_*.py"] if _WITHOUT_TRITON else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _WITHOUT_TRITON:
        terminalreporter.write_line("tests/engine/gpu was left out: Triton is not installed")
