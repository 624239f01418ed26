"""A whole model by Triton's kernels: its tokens are those of plain PyTorch, recorded steps or not, ahead or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serving.contracts.sampling import SamplingParams
from serving.engine.models.gpu_model import GpuModel
from tests.engine.ahead import Played, Player
from tests.engine.driving import random_prompts, small_runner

pytestmark = pytest.mark.heavy


def _sequences() -> list[Played]:
    prompts = random_prompts([1, 21], vocab_size=301)
    return [
        Played(
            f"request-{index}",
            prompt,
            SamplingParams(max_tokens=3, seed=index, temperature=float(index == 1), ignore_eos=True),
        )
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(("family", "max_graph_rows", "ahead"), [("llama-3", 0, False), ("qwen3", 2, True)])
def test_tokens_are_those_of_plain_pytorch(
    tiny_model: Callable[[str], Path], family: str, max_graph_rows: int, ahead: bool
) -> None:
    expected = Player(small_runner(tiny_model(family)), ahead=False).play(_sequences())
    runner = small_runner(tiny_model(family), backend="triton", max_graph_rows=max_graph_rows)
    assert runner.backend == "triton"
    assert isinstance(runner._model, GpuModel)
    assert runner._model.recorded_sizes == [1, 2][:max_graph_rows]
    assert Player(runner, ahead=ahead).play(_sequences()) == expected
