"""The device check compares Triton's kernels with plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serving.engine import selfcheck
from serving.engine.selfcheck import check_device

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("family", ["llama-3", "gemma2"])
def test_tritons_kernels_agree(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """With fewer and shorter contexts than a device is given: the interpreter takes long."""
    monkeypatch.setattr(selfcheck, "_CONTEXTS", (1, 17, 70))
    monkeypatch.setattr(selfcheck, "_LONGEST_PROMPT", 30)
    monkeypatch.setattr(selfcheck, "_NUM_DECODE_STEPS", 2)
    checks = check_device("cpu", tiny_model(family), backend="triton")
    assert [check.name for check in checks] == ["attention", "greedy tokens", "sampling"]
    assert all(check.passed for check in checks), checks
