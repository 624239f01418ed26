"""What a decoder's layers do each in its own way, read from the fields of a `config.json`."""

from __future__ import annotations

import dataclasses
from typing import Any

from serving.engine.models.families import Family
from serving.engine.models.fields import Fields

_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclasses.dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer. With a `window` a position sees so many up to its own, and no others; `has_local_rope`: it rotates as
    `ModelConfig.local_rope` says; `is_sparse`: its feed-forward part is a mixture of experts."""

    window: int | None = None
    has_local_rope: bool = False
    is_sparse: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Mixtures of experts: each of `num_experts` has `intermediate_size` inner numbers, `num_active` compute a token,
    and the weights of these are `normalised` to a sum of 1."""

    num_experts: int
    num_active: int
    intermediate_size: int
    normalised: bool


def read_layers(fields: Fields, family: Family, *, num_layers: int, max_model_len: int) -> tuple[LayerConfig, ...]:
    """Every layer. A window that no context of `max_model_len` tokens exceeds is none."""
    window = _read_window(fields, family)
    is_local = _read_local_layers(fields, family, num_layers=num_layers)
    is_sparse = _read_sparse_layers(fields, family, num_layers=num_layers)
    effective = None if window is None or window >= max_model_len else window
    return tuple(
        LayerConfig(effective if local else None, family.has_local_rope and local, sparse)
        for local, sparse in zip(is_local, is_sparse, strict=True)
    )


def read_experts(fields: Fields, family: Family) -> ExpertsConfig | None:
    """The mixtures of experts, of a family that has them."""
    if not family.has_experts:
        return None
    # Some versions of transformers write one name, some the other.
    name = "num_experts" if fields.get("num_experts") is not None else "num_local_experts"
    num_experts = fields.integer(name)
    num_active = fields.integer("num_experts_per_tok")
    if num_active > num_experts:
        fields.refuse("num_experts_per_tok", f"must be at most {name} {num_experts}, not {num_active}")
    return ExpertsConfig(
        num_experts=num_experts,
        num_active=num_active,
        intermediate_size=fields.integer("intermediate_size" if family.always_sparse else "moe_intermediate_size"),
        normalised=family.always_sparse or fields.flag("norm_topk_prob", default=False),
    )


def _read_window(fields: Fields, family: Family) -> int | None:
    """The size of the windows. A field that is null means none, as in transformers, and one that is absent the
    default."""
    if family.windows == "never" or ("sliding_window" in fields.values and fields.values["sliding_window"] is None):
        return None
    if fields.get("sliding_window") is None:
        return None
    if family.windows in {"where enabled", "in later layers"} and not fields.flag("use_sliding_window", default=False):
        return None
    return fields.integer("sliding_window")


def _read_local_layers(fields: Fields, family: Family, *, num_layers: int) -> list[bool]:
    listed = _read_layer_types(fields, num_layers=num_layers)
    if family.windows == "by pattern":
        if listed:
            return [kind == "sliding_attention" for kind in listed]
        pattern = fields.integer("sliding_window_pattern", family.window_pattern)
        return [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    if family.windows == "in later layers":
        if listed:
            return [kind == "sliding_attention" for kind in listed]
        first = _read_layer_number(fields, "max_window_layers")
        return [layer >= first for layer in range(num_layers)]
    return [family.windows != "never"] * num_layers


def _read_layer_types(fields: Fields, *, num_layers: int) -> list[str]:
    kinds = fields.get("layer_types") or []
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= set(_LAYER_TYPES):
        fields.refuse("layer_types", f"{kinds!r} is not supported; supported are " + ", ".join(_LAYER_TYPES))
    if kinds and len(kinds) != num_layers:
        fields.refuse("layer_types", f"must name the {num_layers} layers, not {len(kinds)}")
    return kinds


def _read_sparse_layers(fields: Fields, family: Family, *, num_layers: int) -> list[bool]:
    if not family.has_experts or family.always_sparse:
        return [family.has_experts] * num_layers
    every = fields.integer("decoder_sparse_step")
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(_is_layer_number(layer) for layer in dense):
        fields.refuse("mlp_only_layers", f"must be a list of layers' numbers, not {dense!r}")
    return [(layer + 1) % every == 0 and layer not in dense for layer in range(num_layers)]


def _read_layer_number(fields: Fields, name: str) -> int:
    value = fields.get(name)
    if not _is_layer_number(value):
        fields.refuse(name, f"must be a layer's number, not {value!r}")
    return int(value)


def _is_layer_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
