"""Models that the CPU's kernels do not compute are computed by PyTorch, or refused where kernels were asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.engine.models.config import read_config
from serving.engine.models.cpu_model import what_is_missing
from tests.engine.driving import Driver, driven, greedy, random_prompts, small_runner
from tests.engine.tiny_models import FAMILIES, KERNEL_FAMILIES

pytestmark = pytest.mark.heavy

_MISSING = {
    "gemma2": "the activation gelu_tanh, norms of outputs, softcaps, a scale of attention scores of its own",
    "gemma3": "norms of outputs, a scale of attention scores of its own, layers that rotate otherwise than the rest",
    "mixtral": "mixtures of experts",
    "qwen3-moe-in-part": "mixtures of experts",
}


def test_what_the_kernels_compute_is_known_of_every_family(tiny_model: Callable[[str], Path]) -> None:
    complete = {family for family in FAMILIES if what_is_missing(read_config(tiny_model(family))) is None}
    assert complete == set(KERNEL_FAMILIES)


@pytest.mark.parametrize("family", _MISSING)
def test_what_the_kernels_lack_is_computed_without_them(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = small_runner(tiny_model(family), dtype="bfloat16", backend="auto", kernels_folder=tmp_path)
    assert runner.backend == "torch"
    (said,) = [record.getMessage() for record in caplog.records if "PyTorch alone" in record.getMessage()]
    assert _MISSING[family] in said
    with pytest.raises(ValueError, match=f"backend cpu cannot be used: .*{_MISSING[family]}"):
        small_runner(tiny_model(family), dtype="bfloat16", backend="cpu", kernels_folder=tmp_path)


@pytest.mark.parametrize(
    ("family", "weight_format"),
    [
        *((family, "bfloat16") for family in ("gemma2", "gemma3", "qwen3-moe", "mixtral", "phi4-mini")),
        *((family, weight_format) for family in ("gemma3", "qwen3-moe-in-part") for weight_format in ("int8", "int4")),
    ],
)
def test_text_in_bf16_is_the_same_alone_together_and_in_chunks(
    family: str, weight_format: str, tiny_model: Callable[[str], Path]
) -> None:
    driver = Driver(small_runner(tiny_model(family), dtype="bfloat16", num_blocks=100, weight_format=weight_format))
    prompts = random_prompts([1, 17, 40, 300], vocab_size=301, seed=4)
    params = greedy(12)
    alone = [driver.finish(driven([prompt], params))[0] for prompt in prompts]
    assert len(set(map(tuple, alone))) > 1
    assert driver.finish(driven(prompts, params)) == alone
    assert driver.finish(driven(prompts, params), max_chunk=23) == alone
