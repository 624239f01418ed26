"""Models of well-known shapes, whose weights are made up on the device: nothing is downloaded."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Literal

import torch

from serving.engine.models.config import ModelConfig
from serving.engine.models.layout import expected_tensors, read_decoder
from serving.engine.models.packed import Kind, PackedMatrix, PackedWeights
from serving.engine.models.weights import DecoderWeights, Matrix, PlainMatrix

WeightKind = Literal["plain", "int4", "fp8"]
_INT4_GROUP = 128
_INT8_GROUP = 32
_FP8_BLOCK = 128

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SHAPES: dict[str, dict[str, Any]] = {
    # As Llama 3.2 1B.
    "1b": _LLAMA
    | {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    # As Llama 3.1 8B.
    "8b": _LLAMA
    | {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    },
    # To see on a CPU that all works.
    "tiny": _LLAMA
    | {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    },
}


def write_shape(name: str, folder: Path) -> Path:
    """A model folder without weights, for `read_config`: a folder `name` in `folder`."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.json").write_text(json.dumps(SHAPES[name]), encoding="utf-8")
    return home


@dataclasses.dataclass(frozen=True, slots=True)
class MadeUpWeights:
    """Makes weights of a model's shape, in place of a loader that reads them: the same for the same shape.

    Products keep the size of what goes through them, so that nothing overflows or dies away, and no number is zero:
    memory and arithmetic units are faster on zeros. With `int4` and `fp8`, every matrix of a layer is packed so; the
    output layer stays plain, as it does in published checkpoints.
    """

    kind: WeightKind = "plain"

    def __call__(
        self, folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device
    ) -> DecoderWeights:
        """As `model_runner.LoadWeights`; nothing of `folder` is read."""
        return read_decoder(config, _Source(config, self.kind, dtype, device))


class _Source:
    """Owns a generator of random numbers; a `layout.Source` of weights of one shape."""

    def __init__(self, config: ModelConfig, kind: WeightKind, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes = expected_tensors(config)
        self._kind = kind
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(1)

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return self._random(shape, 0.05).add_(1)
        return self._random(shape, 1.0)

    def matrix(self, *modules: str, bias: bool) -> Matrix:
        assert not bias, "these shapes have no biases"
        shapes = [self._shapes[f"{module}.weight"] for module in modules]
        shape = (sum(outputs for outputs, _ in shapes), shapes[0][1])
        if self._kind == "plain" or not modules[0].startswith("model.layers."):
            return PlainMatrix(self._random(shape, 1 / math.sqrt(shape[1])))
        return PackedMatrix(packed_weights(self._kind, shape, self._device, self._generator), None, self._dtype)

    def tied(self, embedding: torch.Tensor) -> Matrix:
        # Scaled anew: an embedding is larger than an output layer's weights.
        return PlainMatrix(embedding * (1 / math.sqrt(embedding.shape[1])))

    def _random(self, shape: tuple[int, ...], deviation: float) -> torch.Tensor:
        values = torch.randn(shape, dtype=self._dtype, device=self._device, generator=self._generator)
        return values.mul_(deviation)


def packed_weights(
    kind: Kind, shape: tuple[int, int], device: torch.device, generator: torch.Generator | None = None
) -> PackedWeights:
    """Weights `shape` `[out, in]` made up, with groups as checkpoints usually have them: fp8 in blocks of 128 by 128,
    int4 by 128 inputs with offsets, int8 by 32 inputs."""
    num_outputs, num_inputs = shape
    deviation = 1 / math.sqrt(num_inputs)
    if kind == "fp8":
        floats = torch.randn(shape, device=device, generator=generator, dtype=torch.bfloat16).mul_(64)
        block = min(_FP8_BLOCK, num_inputs)
        scales = torch.full([-(-size // block) for size in shape], deviation / 64, device=device)
        return PackedWeights("fp8", floats.to(torch.float8_e4m3fn), scales, None, block, block)
    if kind == "int8":
        integers = torch.randint(-127, 128, shape, dtype=torch.int8, device=device, generator=generator)
        # Numbers -127 to 127 deviate by 73.6 from their mean.
        scales = torch.full((num_outputs, -(-num_inputs // _INT8_GROUP)), deviation / 73.6, device=device)
        return PackedWeights("int8", integers, scales, None, 1, _INT8_GROUP)
    size = (num_outputs, num_inputs // 2)
    pairs = torch.randint(0, 256, size, dtype=torch.uint8, device=device, generator=generator)
    group = min(_INT4_GROUP, num_inputs)
    # Numbers 0 to 15 deviate by 4.6 from their mean, 7.5.
    scales = torch.full((num_outputs, -(-num_inputs // group)), deviation / 4.6, device=device).half()
    return PackedWeights("int4", pairs, scales, scales * -7.5, 1, group)
