"""A model with quantised weights says what the same weights in full say, whatever computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from serving.engine.kernels.library import Library
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.models.config import read_config
from serving.engine.models.cpu_model import CpuModel
from serving.engine.models.loader import load_weights, open_weights
from serving.engine.models.making import make_model
from serving.engine.models.quantised_weights import in_format
from serving.engine.models.torch_model import TorchModel
from serving.engine.models.weights import DecoderWeights
from tests.engine.driving import Driver, driven, greedy, random_prompts, small_runner
from tests.engine.kernels.test_cpu_model import _all_logits, _contexts, _errors
from tests.engine.quantised_folders import LAYOUTS, quantise_folder

pytestmark = pytest.mark.heavy

_CPU = torch.device("cpu")
_PROMPTS = random_prompts([1, 7, 40, 130], vocab_size=301)
_NUM_TOKENS = 16
_NUM_BLOCKS = 200
_NATIVE = ("awq", "gptq", "gptq-asymmetric", "compressed-int4", "gptq-8-symmetric", "compressed-int8")
"""What the kernels keep as it is."""


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Callable[..., Path]:
    """Makes (once) and returns a tiny model's folder in the named layout, of a family; beside it that in full."""
    folders: dict[tuple[str, str], Path] = {}

    def make(name: str, family: str = "llama") -> Path:
        if (name, family) not in folders:
            target = tmp_path_factory.mktemp("quantised") / name
            folders[name, family] = quantise_folder(tiny_model(family), target, LAYOUTS[name])
        return folders[name, family]

    return make


def _in_full(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-plain")


def _tokens(folder: Path, *, max_chunk: int = 1 << 30) -> list[list[int]]:
    return Driver(small_runner(folder)).finish(driven(_PROMPTS, greedy(_NUM_TOKENS)), max_chunk=max_chunk)


@pytest.mark.parametrize("name", LAYOUTS)
def test_tokens_are_those_of_the_weights_in_full(name: str, quantised: Callable[..., Path]) -> None:
    folder = quantised(name)
    expected = _tokens(_in_full(folder))
    assert len({tuple(tokens) for tokens in expected}) > 1, "the model says the same whatever it reads"
    assert _tokens(folder) == expected
    assert _tokens(folder, max_chunk=16) == expected


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("awq", "llama-biased"),
        ("gptq-by-size", "qwen2"),
        ("fp8-small-blocks", "qwen3"),
        ("compressed-int4", "llama-tied"),
        ("gptq", "phi3"),
        ("awq", "gemma2"),
        ("fp8-small-blocks", "qwen3-moe"),
        ("awq", "mixtral"),
    ],
)
def test_other_families_can_be_quantised_too(name: str, family: str, quantised: Callable[..., Path]) -> None:
    folder = quantised(name, family)
    assert _tokens(folder) == _tokens(_in_full(folder))


@pytest.mark.parametrize("name", ["fp8-even-blocks", "fp8-powers-of-two"])
def test_eight_bit_floats_mean_to_transformers_what_they_mean_here(name: str, quantised: Callable[..., Path]) -> None:
    """Where there is no GPU it makes them whole, if the blocks have no rest."""
    folder = quantised(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        expected = [
            model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=_NUM_TOKENS,
                do_sample=False,
            )[0, len(prompt) :].tolist()
            for prompt in _PROMPTS
        ]
    assert _tokens(folder) == expected


class _Models:
    """A folder's model by the kernels and by PyTorch in bf16, and the one in full in fp32 as the measure of both."""

    def __init__(self, folder: Path, kernels: Library, weight_format: WeightFormat = "bfloat16") -> None:
        self.config = read_config(folder)
        weights = open_weights(folder, self.config, dtype=torch.bfloat16, device=_CPU)
        self.ours = CpuModel(
            self.config, weights, kernels=kernels, num_blocks=_NUM_BLOCKS, num_threads=2, weight_format=weight_format
        )
        self.pytorch = self._torch_model(in_format(weights, weight_format), torch.bfloat16)
        full = load_weights(_in_full(folder), read_config(_in_full(folder)), dtype=torch.float32, device=_CPU)
        self.exact = self._torch_model(full, torch.float32)

    def _torch_model(self, weights: DecoderWeights, dtype: torch.dtype) -> TorchModel:
        return TorchModel(self.config, weights, num_blocks=_NUM_BLOCKS, dtype=dtype, device=_CPU)

    def logits(self, model: CpuModel | TorchModel, *lengths: int, chunk: int) -> list[torch.Tensor]:
        return _all_logits(model, _contexts(lengths, self.config.vocab_size), chunk=chunk)


def _assert_as_exact(
    found: Sequence[torch.Tensor], other: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> None:
    ours, theirs = _errors(found, exact), _errors(other, exact)
    assert (ours <= 1.5 * theirs + 1e-4).all(), (ours, theirs)
    assert theirs.max() < 0.2


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_kernels_are_as_exact_as_pytorch(name: str, kernels: Library, quantised: Callable[..., Path]) -> None:
    models = _Models(quantised(name), kernels)
    exact = models.logits(models.exact, 1, 9, 60, chunk=256)
    pytorch = models.logits(models.pytorch, 1, 9, 60, chunk=256)
    _assert_as_exact(models.logits(models.ours, 1, 9, 60, chunk=20), pytorch, exact)


@pytest.mark.parametrize("name", _NATIVE)
def test_the_kernels_read_no_more_than_the_folder_has(
    name: str, kernels: Library, quantised: Callable[..., Path]
) -> None:
    """But for scales, which they have for 32 inputs each, and for padding."""
    config = read_config(quantised(name))
    assert config.quantisation is not None
    bits = 5.5 if config.quantisation.kinds == ("int4",) else 9.5

    def layer_bytes(folder: Path) -> int:
        weights = load_weights(folder, read_config(folder), dtype=torch.bfloat16, device=_CPU)
        model = CpuModel(config, weights, kernels=kernels, num_blocks=4, num_threads=1)
        return model.weight_bytes - 2 * 304 * 64

    assert layer_bytes(quantised(name)) < 1.15 * layer_bytes(_in_full(quantised(name))) * bits / 16


def test_rows_of_the_kernels_do_not_depend_on_company(kernels: Library, quantised: Callable[..., Path]) -> None:
    models = _Models(quantised("awq"), kernels)
    together = models.logits(models.ours, 1, 16, 100, 257, chunk=1000)
    for one, other in zip(models.logits(models.ours, 1, 16, 100, 257, chunk=7), together, strict=True):
        assert torch.equal(one, other)


def test_floats_may_be_kept_as_whole_numbers(kernels: Library, quantised: Callable[..., Path]) -> None:
    models = _Models(quantised("fp8-blocks"), kernels, "int8")
    exact = models.logits(models.exact, 9, 60, chunk=256)
    _assert_as_exact(
        models.logits(models.ours, 9, 60, chunk=20), models.logits(models.pytorch, 9, 60, chunk=256), exact
    )


@pytest.mark.parametrize("weight_format", ["int8", "int4", "w8a8"])
def test_whole_numbers_are_not_rounded_a_second_time(
    weight_format: WeightFormat, quantised: Callable[..., Path]
) -> None:
    folder = quantised("awq")
    config = read_config(folder)
    weights = load_weights(folder, config, dtype=torch.bfloat16, device=_CPU)
    with pytest.raises(ValueError, match=rf"weights={weight_format} was asked for, .* are awq int4; they are taken as"):
        make_model(
            config,
            weights,
            kv_cache_bytes=2**22,
            dtype=torch.bfloat16,
            device=_CPU,
            backend="torch",
            weight_format=weight_format,
        )
