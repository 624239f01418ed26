"""Tiny models of every family, made by transformers with random weights and saved as ordinary folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

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
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
_GEMMA: dict[str, Any] = _SHAPE | {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 32,
}
_GEMMA3 = _GEMMA | {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}
_EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def _longrope(num_pairs: int) -> dict[str, Any]:
    """Factors that bite, for models trained with 64 tokens."""
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + 0.1 * pair for pair in range(num_pairs)],
        "long_factor": [1.5 + 2.0 * pair for pair in range(num_pairs)],
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
    "mistral-windowed": lambda: MistralConfig(**_SHAPE, sliding_window=32),
    "mixtral": lambda: MixtralConfig(**_SHAPE, num_local_experts=5, sliding_window=100),
    "qwen2": lambda: Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "qwen2-windowed": lambda: Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=260, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=32),
    "qwen3-yarn": lambda: Qwen3Config(**_SHAPE, head_dim=32, rope_parameters=_YARN),
    "qwen3-moe": lambda: Qwen3MoeConfig(**_SHAPE, **_EXPERTS, head_dim=32, norm_topk_prob=True),
    "qwen3-moe-in-part": lambda: Qwen3MoeConfig(
        **{**_SHAPE, "num_hidden_layers": 5}, **_EXPERTS, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "gemma2": lambda: Gemma2Config(**_GEMMA, attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
    "gemma3": lambda: Gemma3TextConfig(**_GEMMA3),
    "gemma3-with-images": lambda: Gemma3Config(
        text_config=_GEMMA3,
        vision_config={"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1},
        image_token_index=300,
        boi_token_index=299,
        eoi_token_index=298,
    ),
    "phi3": lambda: Phi3Config(**_SHAPE, sliding_window=32),
    "phi3-long": lambda: Phi3Config(**_SHAPE, original_max_position_embeddings=64, rope_parameters=_longrope(8)),
    "phi4-mini": lambda: Phi3Config(
        **{**_SHAPE, "hidden_size": 128},
        tie_word_embeddings=True,
        original_max_position_embeddings=64,
        partial_rotary_factor=0.75,
        rope_parameters=_longrope(12) | {"partial_rotary_factor": 0.75},
    ),
}
FAMILIES = tuple(_CONFIGS)
KERNEL_FAMILIES = tuple(name for name in FAMILIES if "gemma" not in name and "moe" not in name and name != "mixtral")
"""Those that the kernels for the CPU compute."""

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
    model = _model(config)
    # Biases and norms start as zeros and ones, which would hide a mistake in them.
    mean = 0.0 if "gemma" in family else 1.0
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(weight, mean=mean if "norm" in name else 0.0, std=0.3)
    model.save_pretrained(folder)


def _model(config: Any) -> PreTrainedModel:
    if isinstance(config, Gemma3Config):
        return Gemma3ForConditionalGeneration(config)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model
