"""Tiny models of every family, made by transformers with random weights and saved as ordinary folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

_SHAPE: dict[str, Any] = {
    "vocab_size": 301,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_SHAPE),
    "llama-tied": lambda: LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "llama-biased": lambda: LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "llama-linear": lambda: LlamaConfig(
        **_SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "llama-3": lambda: LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3),
    "llama-wide-heads": lambda: LlamaConfig(**_SHAPE, head_dim=32),
    "llama-multi-query": lambda: LlamaConfig(**{**_SHAPE, "num_key_value_heads": 1}),
    "mistral": lambda: MistralConfig(**_SHAPE, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=32),
}
FAMILIES = tuple(_CONFIGS)

SHAPES: dict[str, dict[str, int]] = {
    "heads-of-80": {"hidden_size": 160, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80},
    "heads-of-20": {"hidden_size": 80, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 20},
    "heads-of-128": {"hidden_size": 112, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 128},
    "groups-of-8": {"hidden_size": 80, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 16},
    "odd-sizes": {"hidden_size": 76, "intermediate_size": 90, "vocab_size": 333, "head_dim": 16},
    "wide-enough-for-large-groups": {"hidden_size": 64, "intermediate_size": 2080, "vocab_size": 2100},
}
"""Llama models of shapes about the edges of what kernels compute at once."""


def save_tiny_model(family: str, folder: Path) -> None:
    """Make the named family's model in fp32, the same each time, and save it into `folder`."""
    torch.manual_seed(5)
    config = LlamaConfig(**{**_SHAPE, **SHAPES[family]}) if family in SHAPES else _CONFIGS[family]()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Biases and norms start as zeros and ones, which would hide a mistake in them.
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(weight, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.save_pretrained(folder)
