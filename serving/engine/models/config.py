"""The shape of a decoder, read from a Hugging Face folder's `config.json` and `generation_config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from serving.engine.models.families import FAMILIES, TEXT_PARTS, Activation, Family
from serving.engine.models.fields import Fields, read_fields
from serving.engine.models.layer_config import ExpertsConfig, LayerConfig, read_experts, read_layers
from serving.engine.models.problem import ModelFolderProblem
from serving.engine.models.quantisation_config import Quantisation, read_quantisation
from serving.engine.models.rope_config import RopeConfig, read_local_rope, read_rope

ARCHITECTURES = tuple(FAMILIES)

_PLAIN_LAYER = LayerConfig()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """All that the decoder and its loader need to know of a model.

    `max_model_len` is the longest context in tokens; `note` says in a sentence what of the folder is not served, and is
    empty where all is.

    Gemma's ways: `norm_adds_one`, norms multiply by 1 + weight, and round after that; `norms_outputs`, what attention
    and the feed-forward part give is normed too before it is added; `embedding_scale`, by which embeddings are
    multiplied; `attention_scale`, by which scores are, where it is not head_dim ** -0.5; the softcaps of scores and
    logits. `layers` is empty where none has anything of its own. `fused_projections`: the folder holds queries, keys
    and values as one matrix, and gate and up as another. `tensor_prefix` comes before the names of all tensors.
    `quantisation` says how the folder keeps weights in fewer bits, where it does.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_model_len: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: frozenset[int]
    note: str = ""
    activation: Activation = "silu"
    norm_adds_one: bool = False
    norms_outputs: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    local_rope: RopeConfig | None = None
    layers: tuple[LayerConfig, ...] = ()
    experts: ExpertsConfig | None = None
    fused_projections: bool = False
    tensor_prefix: str = ""
    quantisation: Quantisation | None = None

    def layer(self, index: int) -> LayerConfig:
        """What layer number `index` has of its own."""
        return self.layers[index] if self.layers else _PLAIN_LAYER


def read_config(folder: Path) -> ModelConfig:
    """The configuration of the model in `folder`; raises `ModelFolderProblem` naming what cannot be served."""
    if not folder.is_dir():
        raise ModelFolderProblem(folder, "folder", "there is none")
    whole = read_fields(folder, "config.json")
    architecture, family = _architecture(whole)
    fields = _text_part(whole, architecture).with_defaults(family.defaults)
    _refuse_what_is_not_built(fields, family)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    head_dim = _head_dim(fields, hidden_size=hidden_size, num_heads=num_heads)
    has_attention_bias = family.reads_attention_bias and fields.flag("attention_bias", default=False)
    vocab_size = fields.integer("vocab_size")
    num_layers = fields.integer("num_hidden_layers")
    max_model_len = fields.integer("max_position_embeddings")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, architecture, num_heads=num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=read_rope(fields, family, head_dim=head_dim, max_model_len=max_model_len),
        max_model_len=max_model_len,
        tie_word_embeddings=_tie_word_embeddings(whole, fields),
        qkv_bias=has_attention_bias or family.qkv_bias,
        output_bias=has_attention_bias,
        mlp_bias=family.reads_mlp_bias and fields.flag("mlp_bias", default=False),
        qk_norm=family.qk_norm,
        eos_token_ids=_eos_token_ids(whole, fields, vocab_size),
        note="only the part of the model that reads and writes text is served" if fields.file != whole.file else "",
        activation=_activation(fields, family),
        norm_adds_one=family.is_gemma,
        norms_outputs=family.is_gemma,
        embedding_scale=hidden_size**0.5 if family.is_gemma else 1.0,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5 if family.is_gemma else None,
        attention_softcap=fields.optional_number("attn_logit_softcapping") if family.reads_attention_softcap else None,
        logit_softcap=fields.optional_number("final_logit_softcapping") if family.is_gemma else None,
        local_rope=read_local_rope(fields, family),
        layers=read_layers(fields, family, num_layers=num_layers, max_model_len=max_model_len),
        experts=read_experts(fields, family),
        fused_projections=family.fused_projections,
        tensor_prefix="language_model." if fields.file != whole.file else "",
        quantisation=read_quantisation(whole),
    )


def _architecture(fields: Fields) -> tuple[str, Family]:
    supported = "supported are " + ", ".join(ARCHITECTURES)
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        fields.refuse("architectures", f"must be a list of one name, not {names!r}; {supported}")
    name = names[0]
    if name not in FAMILIES:
        fields.refuse("architectures", f"{name} is not supported; {supported}")
    return name, FAMILIES[name]


def _text_part(whole: Fields, architecture: str) -> Fields:
    """The fields that describe the decoder: an object of their own in models that see images too."""
    name = TEXT_PARTS.get(architecture)
    if name is None:
        return whole
    part = whole.part(name)
    if part is None:
        whole.refuse(name, "is missing")
    return part


def _refuse_what_is_not_built(fields: Fields, family: Family) -> None:
    if fields.get("use_bidirectional_attention"):
        fields.refuse("use_bidirectional_attention", "is not supported: a token sees those before it, and no others")
    if family.is_gemma and not family.reads_attention_softcap and fields.get("attn_logit_softcapping") is not None:
        fields.refuse("attn_logit_softcapping", "is not supported of this family; it must be null")


def _activation(fields: Fields, family: Family) -> Activation:
    name = fields.get(family.activation_field) or next(iter(family.activations))
    if not isinstance(name, str) or name not in family.activations:
        supported = ", ".join(family.activations)
        fields.refuse(family.activation_field, f"{name!r} is not supported; supported is {supported}")
    return family.activations[name]


def _num_kv_heads(fields: Fields, architecture: str, *, num_heads: int) -> int:
    as_many = num_heads if architecture in {"LlamaForCausalLM", "Phi3ForCausalLM"} else None
    num_kv_heads = fields.integer("num_key_value_heads", as_many)
    if num_heads % num_kv_heads:
        fields.refuse("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads {num_heads}")
    return num_kv_heads


def _head_dim(fields: Fields, *, hidden_size: int, num_heads: int) -> int:
    if fields.get("head_dim") is None and hidden_size % num_heads:
        fields.refuse("num_attention_heads", f"{num_heads} does not divide hidden_size {hidden_size}")
    head_dim = fields.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        fields.refuse("head_dim", f"must be even for rotary embedding, not {head_dim}")
    return head_dim


def _tie_word_embeddings(whole: Fields, fields: Fields) -> bool:
    """Models that see images say it beside their parts, or nowhere."""
    described = whole if whole.get("tie_word_embeddings") is not None else fields
    return described.flag("tie_word_embeddings", default=False)


def _eos_token_ids(whole: Fields, fields: Fields, vocab_size: int) -> frozenset[int]:
    """Every token that any of the files calls an end: chat models often name theirs in one of them only."""
    ids = {*_token_ids(whole, vocab_size), *_token_ids(fields, vocab_size)}
    if (whole.folder / "generation_config.json").exists():
        ids |= set(_token_ids(read_fields(whole.folder, "generation_config.json"), vocab_size))
    return frozenset(ids)


def _token_ids(fields: Fields, vocab_size: int) -> Iterable[int]:
    value = fields.get("eos_token_id")
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            fields.refuse("eos_token_id", f"{token_id!r} is not a token of the vocabulary (0 to {vocab_size - 1})")
    return ids
