"""The shape of a decoder, read from a Hugging Face folder's `config.json` and `generation_config.json`."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Literal, NoReturn

from serving.engine.models.problem import ModelFolderProblem

Family = Literal["llama", "mistral", "qwen2", "qwen3"]

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_DEFAULT_ROPE_THETA = 10_000.0
_QWEN3_HEAD_DIM = 128
"""What transformers assumes of a Qwen3 config that does not say."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding. `factor` stretches the context: by every frequency alike (`linear`), or by wavelength
    as Llama 3.1 does (`llama3`), where the last three fields say which wavelengths count as long."""

    theta: float = _DEFAULT_ROPE_THETA
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """All that the decoder and its loader need to know of a model.

    `max_model_len` is the longest context in tokens; `note` says in a sentence why it is shorter than the folder's own
    figure, and is empty where it is not.
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


def read_config(folder: Path) -> ModelConfig:
    """The configuration of the model in `folder`; raises `ModelFolderProblem` naming what cannot be served."""
    if not folder.is_dir():
        raise ModelFolderProblem(folder, "folder", "there is none")
    fields = _Fields(folder, "config.json", _read_json(folder, "config.json"))
    architecture, family = _architecture(fields)
    _refuse_what_is_not_built(fields)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads if family == "llama" else None)
    head_dim = _head_dim(fields, family, hidden_size=hidden_size, num_heads=num_heads)
    if num_heads % num_kv_heads:
        fields.refuse("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads {num_heads}")
    attention_bias = family in {"llama", "qwen3"} and fields.flag("attention_bias", default=False)
    vocab_size = fields.integer("vocab_size")
    num_layers = fields.integer("num_hidden_layers")
    max_model_len, note = _max_model_len(fields, family, num_layers=num_layers)
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=_rope(fields, max_model_len),
        max_model_len=max_model_len,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", default=False),
        qk_norm=family == "qwen3",
        eos_token_ids=_eos_token_ids(fields, vocab_size),
        note=note,
    )


class _Fields:
    """Typed look-ups in one JSON object of a model folder. Owns nothing; refuses what is missing or of another type."""

    def __init__(self, folder: Path, file: str, values: dict[str, Any]) -> None:
        self.folder = folder
        self.file = file
        self.values = values

    def refuse(self, name: str, problem: str) -> NoReturn:
        raise ModelFolderProblem(self.folder, f"{self.file}: {name}", problem)

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(name, f"must be a positive integer, not {value!r}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        valid = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value) and value > 0
        if not valid:
            self.refuse(name, f"must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, f"must be true or false, not {value!r}")
        return bool(value)

    def part(self, name: str) -> _Fields | None:
        """The object under `name`, or none where it is absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, f"must be an object, not {value!r}")
        return _Fields(self.folder, f"{self.file}: {name}", value)

    def _value(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is not None:
            return value
        if default is None:
            self.refuse(name, "is missing")
        return default


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        values = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderProblem(folder, name, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise ModelFolderProblem(folder, name, f"cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise ModelFolderProblem(folder, name, "is not a JSON object")
    return values


def _architecture(fields: _Fields) -> tuple[str, Family]:
    supported = "supported are " + ", ".join(ARCHITECTURES)
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        fields.refuse("architectures", f"must be a list of one name, not {names!r}; {supported}")
    name = names[0]
    if name not in ARCHITECTURES:
        fields.refuse("architectures", f"{name} is not supported; {supported}")
    return name, ARCHITECTURES[name]


def _refuse_what_is_not_built(fields: _Fields) -> None:
    activation = fields.get("hidden_act") or "silu"
    if activation != "silu":
        fields.refuse("hidden_act", f"{activation!r} is not supported; supported is silu")
    if fields.get("quantization_config") is not None:
        fields.refuse("quantization_config", "quantised weights are not supported; supported are bf16, fp16 and fp32")
    layer_types = fields.get("layer_types") or []
    known = {"full_attention", "sliding_attention"}
    if not isinstance(layer_types, list) or not set(map(str, layer_types)) <= known:
        fields.refuse("layer_types", f"{layer_types!r} is not supported; supported are " + ", ".join(sorted(known)))


def _head_dim(fields: _Fields, family: Family, *, hidden_size: int, num_heads: int) -> int:
    if fields.get("head_dim") is None and family != "qwen3" and hidden_size % num_heads:
        fields.refuse("num_attention_heads", f"{num_heads} does not divide hidden_size {hidden_size}")
    head_dim = fields.integer("head_dim", _QWEN3_HEAD_DIM if family == "qwen3" else hidden_size // num_heads)
    if head_dim % 2:
        fields.refuse("head_dim", f"must be even for rotary embedding, not {head_dim}")
    return head_dim


def _max_model_len(fields: _Fields, family: Family, *, num_layers: int) -> tuple[int, str]:
    """The longest context, and why it is cut. Every position of a context within the window sees all before it, so a
    model with sliding windows is served exactly up to the window and refused beyond."""
    longest = fields.integer("max_position_embeddings")
    if fields.get("sliding_window") is None or not _has_sliding_layers(fields, family, num_layers=num_layers):
        return longest, ""
    window = fields.integer("sliding_window")
    if window >= longest:
        return longest, ""
    return window, f"contexts are limited to the sliding window of {window} tokens ({longest} without it)"


def _has_sliding_layers(fields: _Fields, family: Family, *, num_layers: int) -> bool:
    if family == "llama":
        return False
    if family == "mistral":
        return True
    if not fields.flag("use_sliding_window", default=False):
        return False
    layer_types = fields.get("layer_types")
    if layer_types:
        return "sliding_attention" in layer_types
    first_sliding = fields.get("max_window_layers")
    return not isinstance(first_sliding, int) or first_sliding < num_layers


def _rope(fields: _Fields, max_model_len: int) -> RopeConfig:
    """Rotary settings in either form: `rope_theta` with `rope_scaling`, or `rope_parameters` (transformers 5)."""
    scaling = fields.part("rope_parameters") or fields.part("rope_scaling")
    theta = fields.number("rope_theta", _DEFAULT_ROPE_THETA)
    if scaling is None:
        return RopeConfig(theta=theta)
    theta = scaling.number("rope_theta", theta)
    if scaling.number("partial_rotary_factor", 1.0) != 1.0:
        scaling.refuse("partial_rotary_factor", "only 1 is supported")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=scaling.number("factor"))
    if kind != "llama3":
        scaling.refuse("rope_type", f"{kind!r} is not supported; supported are default, linear, llama3")
    rope = RopeConfig(
        theta=theta,
        kind="llama3",
        factor=scaling.number("factor"),
        low_freq_factor=scaling.number("low_freq_factor"),
        high_freq_factor=scaling.number("high_freq_factor"),
        original_max_position_embeddings=scaling.integer("original_max_position_embeddings", max_model_len),
    )
    if rope.high_freq_factor <= rope.low_freq_factor:
        scaling.refuse("high_freq_factor", f"must be above low_freq_factor {rope.low_freq_factor:g}")
    return rope


def _eos_token_ids(fields: _Fields, vocab_size: int) -> frozenset[int]:
    """Every token that either file calls an end: chat models often name theirs in one of them only."""
    ids = set(_token_ids(fields, vocab_size))
    if (fields.folder / "generation_config.json").exists():
        generation = _read_json(fields.folder, "generation_config.json")
        ids |= set(_token_ids(_Fields(fields.folder, "generation_config.json", generation), vocab_size))
    return frozenset(ids)


def _token_ids(fields: _Fields, vocab_size: int) -> list[int]:
    value = fields.get("eos_token_id")
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            fields.refuse("eos_token_id", f"{token_id!r} is not a token of the vocabulary (0 to {vocab_size - 1})")
    return ids
