"""What the families of decoders have of their own, and which fields of a `config.json` say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Activation = Literal["silu", "gelu_tanh"]
RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
Windows = Literal["never", "everywhere", "where enabled", "in later layers", "by pattern"]

_SILU: Mapping[str, Activation] = {"silu": "silu"}
_GELU: Mapping[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Decoders that differ in sizes alone.

    `defaults` are what transformers assumes of a `config.json` that does not say. `activations` are the values that the
    field `activation_field` may have. `windows` says which layers see no more than `sliding_window`: none, all, all
    where `use_sliding_window` is set, those from `max_window_layers` on where it is, or all but each
    `window_pattern`th. `has_local_rope`: those with a window have a rotary embedding of their own. `has_experts`: the
    feed-forward parts are mixtures of experts, in every layer where `always_sparse`.
    """

    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    activation_field: str = "hidden_act"
    activations: Mapping[str, Activation] = dataclasses.field(default_factory=lambda: _SILU)
    qkv_bias: bool = False
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    is_gemma: bool = False
    reads_attention_softcap: bool = False
    fused_projections: bool = False
    windows: Windows = "never"
    window_pattern: int = 1
    has_local_rope: bool = False
    rope_kinds: tuple[RopeKind, ...] = ("default", "linear", "llama3", "yarn")
    has_partial_rope: bool = False
    has_experts: bool = False
    always_sparse: bool = False


_GEMMA_DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA2 = Family(
    defaults=_GEMMA_DEFAULTS
    | {
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    activation_field="hidden_activation",
    activations=_GELU,
    reads_attention_bias=True,
    is_gemma=True,
    reads_attention_softcap=True,
    windows="by pattern",
    window_pattern=2,
    rope_kinds=("default", "linear"),
)
_GEMMA3 = Family(
    defaults=_GEMMA_DEFAULTS | {"vocab_size": 262_208, "max_position_embeddings": 131_072},
    activation_field="hidden_activation",
    activations=_GELU,
    reads_attention_bias=True,
    qk_norm=True,
    is_gemma=True,
    windows="by pattern",
    window_pattern=6,
    has_local_rope=True,
    rope_kinds=("default", "linear"),
)
_PHI3 = Family(
    fused_projections=True,
    windows="everywhere",
    rope_kinds=("default", "longrope"),
    has_partial_rope=True,
)
_QWEN_WINDOWS: dict[str, Any] = {"sliding_window": 4096, "max_window_layers": 28}
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(reads_attention_bias=True, reads_mlp_bias=True),
    "MistralForCausalLM": Family(defaults={"sliding_window": 4096}, windows="everywhere"),
    "Qwen2ForCausalLM": Family(defaults=_QWEN_WINDOWS, qkv_bias=True, windows="in later layers"),
    "Qwen3ForCausalLM": Family(
        defaults=_QWEN_WINDOWS | {"head_dim": 128},
        reads_attention_bias=True,
        qk_norm=True,
        windows="in later layers",
    ),
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Phi3ForCausalLM": _PHI3,
    "Qwen3MoeForCausalLM": Family(
        defaults={"sliding_window": 4096, "decoder_sparse_step": 1},
        reads_attention_bias=True,
        qk_norm=True,
        windows="where enabled",
        has_experts=True,
    ),
    "MixtralForCausalLM": Family(
        defaults={"num_key_value_heads": 8, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
        windows="everywhere",
        has_experts=True,
        always_sparse=True,
    ),
}
"""By the name under `architectures`."""

TEXT_PARTS: Mapping[str, str] = {"Gemma3ForConditionalGeneration": "text_config"}
"""Models that see images too: the field that describes the part which speaks, the one that is served."""
