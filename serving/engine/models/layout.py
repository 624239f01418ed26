"""How a Hugging Face folder names a decoder's tensors, and how they become its weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import torch

from serving.engine.models.config import ModelConfig
from serving.engine.models.layer_config import ExpertsConfig
from serving.engine.models.weights import DecoderWeights, DenseWeights, LayerWeights, Matrix, SparseWeights

_EMBEDDING = "model.embed_tokens"
_FINAL_NORM = "model.norm.weight"
_VOCABULARY = "lm_head"
_NOT_TEXT = ("vision_tower.", "multi_modal_projector.")


class Source(Protocol):
    """Where a decoder's weights come from, in the model's dtype and on its device."""

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of this name, which is kept as it is: a norm, the embedding."""
        ...

    def matrix(self, *modules: str, bias: bool) -> Matrix:
        """The products of these modules (the tensors' names without `.weight`) fused along their outputs, in this
        order."""
        ...

    def tied(self, embedding: torch.Tensor) -> Matrix:
        """The output layer of a model that has the embedding's weights there."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class _ExpertNames:
    """How a family names a layer's mixture of experts: the router, what all experts are in, and an expert's parts."""

    router: str
    experts: str
    gate: str
    up: str
    down: str


_MIXTRAL = _ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", gate="w1", up="w3", down="w2")
_QWEN = _ExpertNames("mlp.gate", "mlp.experts", gate="gate_proj", up="up_proj", down="down_proj")


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape by name of every tensor that a folder with this configuration must hold, were its weights plain."""
    shapes: dict[str, tuple[int, ...]] = {
        f"{_EMBEDDING}.weight": (config.vocab_size, config.hidden_size),
        _FINAL_NORM: (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[f"{_VOCABULARY}.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config, is_sparse=config.layer(layer).is_sparse).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    return {config.tensor_prefix + name: shape for name, shape in shapes.items()}


def is_redundant(config: ModelConfig, name: str) -> bool:
    """Whether a tensor that is not expected may be there nevertheless: older files carry rotary frequencies, and tied
    models sometimes their output layer; both follow from the rest. What belongs to images is not served."""
    if name.endswith(".rotary_emb.inv_freq"):
        return True
    if config.tensor_prefix and name.startswith(_NOT_TEXT):
        return True
    return config.tie_word_embeddings and name == f"{config.tensor_prefix}{_VOCABULARY}.weight"


def count_layer_weights(config: ModelConfig) -> int:
    """How many weights of the layers compute a token: of mixtures of experts, those of the experts that it has."""
    return sum(_count_layer_weights(config, layer) for layer in range(config.num_layers))


def read_decoder(config: ModelConfig, source: Source) -> DecoderWeights:
    """The decoder's weights from `source`, layer by layer."""
    prefix = config.tensor_prefix
    embedding = source.tensor(f"{prefix}{_EMBEDDING}.weight")
    is_tied = config.tie_word_embeddings
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_read_layer(config, source, layer) for layer in range(config.num_layers)),
        final_norm=source.tensor(prefix + _FINAL_NORM),
        vocabulary=source.tied(embedding) if is_tied else source.matrix(prefix + _VOCABULARY, bias=False),
    )


def _expert_names(config: ModelConfig) -> _ExpertNames:
    return _MIXTRAL if config.architecture == "MixtralForCausalLM" else _QWEN


def _norm_names(config: ModelConfig) -> tuple[str, ...]:
    """The norms of a layer in their order: of what enters attention, of what it gives (in Gemma alone), of what enters
    the feed-forward part, of what that gives (in Gemma alone)."""
    if not config.norms_outputs:
        return "input_layernorm", "post_attention_layernorm"
    return "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"


def _layer_tensors(config: ModelConfig, *, is_sparse: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (config.hidden_size,) for name in _norm_names(config)}
    shapes |= _attention_tensors(config)
    if is_sparse and config.experts is not None:
        return shapes | _expert_tensors(config, config.experts)
    return shapes | _feed_forward_tensors(config)


def _attention_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = {"q": queries, "k": keys, "v": keys}
    if config.fused_projections:
        parts = {"qkv": queries + 2 * keys}
    shapes: dict[str, tuple[int, ...]] = {
        f"self_attn.{part}_proj.weight": (size, hidden) for part, size in parts.items()
    }
    shapes["self_attn.o_proj.weight"] = (hidden, queries)
    if config.qkv_bias:
        shapes |= {f"self_attn.{part}_proj.bias": (size,) for part, size in parts.items()}
    if config.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes |= {f"self_attn.{part}_norm.weight": (config.head_dim,) for part in ("q", "k")}
    return shapes


def _feed_forward_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    parts = {"gate_up": 2 * intermediate} if config.fused_projections else {"gate": intermediate, "up": intermediate}
    shapes: dict[str, tuple[int, ...]] = {f"mlp.{part}_proj.weight": (size, hidden) for part, size in parts.items()}
    shapes["mlp.down_proj.weight"] = (hidden, intermediate)
    if config.mlp_bias:
        shapes |= {f"mlp.{part}_proj.bias": (size,) for part, size in (parts | {"down": hidden}).items()}
    return shapes


def _expert_tensors(config: ModelConfig, experts: ExpertsConfig) -> dict[str, tuple[int, ...]]:
    names = _expert_names(config)
    hidden, intermediate = config.hidden_size, experts.intermediate_size
    parts = {names.gate: (intermediate, hidden), names.up: (intermediate, hidden), names.down: (hidden, intermediate)}
    shapes: dict[str, tuple[int, ...]] = {f"{names.router}.weight": (experts.num_experts, hidden)}
    for expert in range(experts.num_experts):
        shapes |= {f"{names.experts}.{expert}.{part}.weight": shape for part, shape in parts.items()}
    return shapes


def _count_layer_weights(config: ModelConfig, layer: int) -> int:
    is_sparse = config.layer(layer).is_sparse
    count = sum(math.prod(shape) for shape in _layer_tensors(config, is_sparse=is_sparse).values())
    if not is_sparse or config.experts is None:
        return count
    num_idle = config.experts.num_experts - config.experts.num_active
    return count - num_idle * 3 * config.hidden_size * config.experts.intermediate_size


def _read_layer(config: ModelConfig, source: Source, layer: int) -> LayerWeights:
    prefix = f"{config.tensor_prefix}model.layers.{layer}"
    attention = f"{prefix}.self_attn"
    parts = ("qkv",) if config.fused_projections else ("q", "k", "v")
    norms = [source.tensor(f"{prefix}.{name}.weight") for name in _norm_names(config)]
    return LayerWeights(
        input_norm=norms[0],
        qkv=source.matrix(*(f"{attention}.{part}_proj" for part in parts), bias=config.qkv_bias),
        query_norm=source.tensor(f"{attention}.q_norm.weight") if config.qk_norm else None,
        key_norm=source.tensor(f"{attention}.k_norm.weight") if config.qk_norm else None,
        output=source.matrix(f"{attention}.o_proj", bias=config.output_bias),
        attention_output_norm=norms[1] if config.norms_outputs else None,
        mlp_norm=norms[2] if config.norms_outputs else norms[1],
        feed_forward=_read_feed_forward(config, source, layer, prefix),
        mlp_output_norm=norms[3] if config.norms_outputs else None,
    )


def _read_feed_forward(config: ModelConfig, source: Source, layer: int, prefix: str) -> DenseWeights | SparseWeights:
    if config.layer(layer).is_sparse and config.experts is not None:
        return _read_experts(config, config.experts, source, prefix)
    parts = ("gate_up",) if config.fused_projections else ("gate", "up")
    return DenseWeights(
        source.matrix(*(f"{prefix}.mlp.{part}_proj" for part in parts), bias=config.mlp_bias),
        source.matrix(f"{prefix}.mlp.down_proj", bias=config.mlp_bias),
    )


def _read_experts(config: ModelConfig, experts: ExpertsConfig, source: Source, prefix: str) -> SparseWeights:
    names = _expert_names(config)
    modules = [f"{prefix}.{names.experts}.{expert}" for expert in range(experts.num_experts)]
    return SparseWeights(
        router=source.matrix(f"{prefix}.{names.router}", bias=False),
        experts=tuple(
            DenseWeights(
                source.matrix(f"{module}.{names.gate}", f"{module}.{names.up}", bias=False),
                source.matrix(f"{module}.{names.down}", bias=False),
            )
            for module in modules
        ),
        num_active=experts.num_active,
    )
