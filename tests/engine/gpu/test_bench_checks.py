"""The bench's checks of kernels find what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import LayerAttention
from serving.engine.bench.gpu import checks
from serving.engine.bench.gpu.checks import KernelCheck, check_kernels
from serving.engine.bench.gpu.shapes import write_shape
from serving.engine.models.config import read_config
from serving.engine.models.feed_forward import mix_experts

pytestmark = pytest.mark.heavy


def _failed(folder: Path, monkeypatch: pytest.MonkeyPatch, *, beginning: str) -> set[str]:
    monkeypatch.setattr(checks, "_CHECKS", {n: c for n, c in checks._CHECKS.items() if n.startswith(beginning)})
    config = read_config(write_shape("tiny", folder))
    found: list[KernelCheck] = list(check_kernels(config, torch.device("cpu"), (torch.float32,)))
    assert len(found) == len(checks._CHECKS) > 0
    return {check.kernel for check in found if not check.passed}


@pytest.mark.parametrize(
    ("without", "kernel"),
    [("window", "attention with a window"), ("softcap", "attention with a softcap")],
)
def test_attention_that_forgets_what_layers_have_is_found(
    without: str, kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(name: str, cache: Any, *, num_heads: int, layers: Sequence[LayerAttention]) -> Any:
        if name == "triton":
            layers = [
                LayerAttention(
                    layer.scale,
                    None if without == "window" else layer.window,
                    None if without == "softcap" else layer.softcap,
                )
                for layer in layers
            ]
        return make_attention(name, cache, num_heads=num_heads, layers=layers)

    assert _failed(tmp_path, monkeypatch, beginning="attention") == set()
    monkeypatch.setattr(checks, "make_attention", forgetful)
    assert _failed(tmp_path, monkeypatch, beginning="attention") == {kernel}


def test_experts_that_are_mixed_wrongly_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(rows: torch.Tensor, weights: Any, *, normalised: bool, gate: Any) -> torch.Tensor:
        return mix_experts(rows, weights, normalised=not normalised, gate=gate)

    assert _failed(tmp_path, monkeypatch, beginning="experts") == set()
    monkeypatch.setattr(checks, "mix_experts", mixed)
    assert _failed(tmp_path, monkeypatch, beginning="experts") == {"experts"}
