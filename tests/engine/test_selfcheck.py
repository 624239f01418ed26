"""The device check agrees with itself, and notices a backend that computes something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from serving.engine.attention import torch_backend
from serving.engine.selfcheck import check_device

pytestmark = pytest.mark.heavy


def test_the_reference_agrees_with_itself(tiny_model: Callable[[str], Path]) -> None:
    checks = check_device("cpu", tiny_model("llama-3"))
    assert [check.name for check in checks] == ["attention", "greedy tokens", "sampling"]
    assert all(check.passed for check in checks), checks


def test_wrong_attention_is_noticed(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second backend that is made ignores the past: the one under test."""
    attend, made = torch_backend.TorchAttention.attend, []
    create = torch_backend.TorchAttention.__init__

    def counting(backend: torch_backend.TorchAttention, *arguments: object, **options: object) -> None:
        create(backend, *arguments, **options)  # type: ignore[arg-type]
        made.append(backend)

    def forgetful(
        backend: torch_backend.TorchAttention, layer: int, queries: torch.Tensor, *rest: torch.Tensor, batch: object
    ) -> torch.Tensor:
        right = attend(backend, layer, queries, *rest, batch=batch)  # type: ignore[arg-type]
        return right if made.index(backend) % 2 == 0 else queries.flatten(1)

    monkeypatch.setattr(torch_backend.TorchAttention, "__init__", counting)
    monkeypatch.setattr(torch_backend.TorchAttention, "attend", forgetful)
    attention, tokens, sampling = check_device("cpu", tiny_model("llama-3"))
    assert not attention.passed
    assert not tokens.passed
    assert sampling.passed
