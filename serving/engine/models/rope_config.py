"""The settings of rotary position embeddings, read from the fields of a `config.json`."""

from __future__ import annotations

import dataclasses
import math

from serving.engine.models.families import Family, RopeKind
from serving.engine.models.fields import Fields

DEFAULT_THETA = 10_000.0
_GLOBAL_THETA = 1_000_000.0
"""What transformers assumes of a Gemma 3 config's layers without a window."""
_LONGROPE_CONTEXT = 4096
"""What transformers assumes a Phi-3 model was trained with."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of the first `rotated_share` of a head's dimensions.

    `factor` stretches the context: by every frequency alike (`linear`), by wavelength as Llama 3.1 does (`llama3`,
    where the next two fields say which wavelengths count as long), or by how often a pair of dimensions turns within
    the original context (`yarn`: pairs with more turns than `beta_fast` are left alone, those with fewer than
    `beta_slow` stretched, and those between are a mixture; where `truncated`, the bounds are whole dimensions).

    With `longrope` the frequencies of a sequence that may grow beyond `original_max_position_embeddings` tokens are
    divided by `long_factors`, and those of one that may not by `short_factors`, a number for each pair; there are no
    long ones where no context is so long. Cosines and sines are multiplied by `attention_factor`.
    """

    theta: float = DEFAULT_THETA
    kind: RopeKind = "default"
    rotated_share: float = 1.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncated: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0

    def rotary_dim(self, head_dim: int) -> int:
        """How many of a head's dimensions are rotated."""
        return int(head_dim * self.rotated_share)

    @property
    def long_from(self) -> int | None:
        """Sequences that may grow beyond so many tokens are rotated otherwise, from their first token on: keys that
        were rotated in one way cannot be compared with queries that are in the other. None where all are alike."""
        return self.original_max_position_embeddings if self.long_factors else None


def read_rope(fields: Fields, family: Family, *, head_dim: int, max_model_len: int) -> RopeConfig:
    """Rotary settings in either form: `rope_theta` with `rope_scaling`, or `rope_parameters` (transformers 5)."""
    scaling = _global_part(fields, family) or Fields(fields.folder, fields.file, {})
    theta = scaling.number("rope_theta", fields.number("rope_theta", _theta(family)))
    rope = RopeConfig(theta=theta, rotated_share=_read_share(fields, scaling, family, head_dim=head_dim))
    kind = _read_kind(scaling, family)
    if kind == "linear":
        return dataclasses.replace(rope, kind=kind, factor=scaling.number("factor"))
    if kind == "llama3":
        return _read_llama3(scaling, rope, max_model_len)
    if kind == "yarn":
        return _read_yarn(scaling, rope, max_model_len)
    if kind == "longrope":
        return _read_longrope(fields, scaling, rope, head_dim=head_dim, max_model_len=max_model_len)
    return rope


def read_local_rope(fields: Fields, family: Family) -> RopeConfig | None:
    """The rotary settings of layers with a window, where the family has others for them."""
    if not family.has_local_rope:
        return None
    nested = fields.part("rope_parameters")
    local = nested.part("sliding_attention") if nested else None
    if local is None:
        return RopeConfig(theta=fields.number("rope_local_base_freq", DEFAULT_THETA))
    kind = _read_kind(local, family)
    if kind != "default":
        local.refuse("rope_type", f"{kind!r} is not supported of layers with a window; supported is default")
    return RopeConfig(theta=local.number("rope_theta", DEFAULT_THETA))


def _global_part(fields: Fields, family: Family) -> Fields | None:
    parameters = fields.part("rope_parameters")
    if parameters is not None and family.has_local_rope:
        return parameters.part("full_attention")
    return parameters or fields.part("rope_scaling")


def _theta(family: Family) -> float:
    return _GLOBAL_THETA if family.has_local_rope else DEFAULT_THETA


def _read_kind(scaling: Fields, family: Family) -> RopeKind:
    given = scaling.get("rope_type") or scaling.get("type") or "default"
    if "longrope" in family.rope_kinds and given in ("su", "yarn"):
        given = "longrope"  # the names under which Phi-3 models were first published
    kind = next((kind for kind in family.rope_kinds if kind == given), None)
    if kind is None:
        scaling.refuse("rope_type", f"{given!r} is not supported; supported are {', '.join(family.rope_kinds)}")
    return kind


def _read_share(fields: Fields, scaling: Fields, family: Family, *, head_dim: int) -> float:
    if not family.has_partial_rope:
        if scaling.number("partial_rotary_factor", 1.0) != 1.0:
            scaling.refuse("partial_rotary_factor", "only 1 is supported")
        return 1.0
    share = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    rotated = int(head_dim * share)
    if share > 1 or rotated < 2 or rotated % 2:
        fields.refuse(
            "partial_rotary_factor",
            f"must rotate an even number of a head's {head_dim} dimensions, at least 2, not {share:g} of them",
        )
    return share


def _read_llama3(scaling: Fields, rope: RopeConfig, max_model_len: int) -> RopeConfig:
    rope = dataclasses.replace(
        rope,
        kind="llama3",
        factor=scaling.number("factor"),
        low_freq_factor=scaling.number("low_freq_factor"),
        high_freq_factor=scaling.number("high_freq_factor"),
        original_max_position_embeddings=scaling.integer("original_max_position_embeddings", max_model_len),
    )
    if rope.high_freq_factor <= rope.low_freq_factor:
        scaling.refuse("high_freq_factor", f"must be above low_freq_factor {rope.low_freq_factor:g}")
    return rope


def _read_yarn(scaling: Fields, rope: RopeConfig, max_model_len: int) -> RopeConfig:
    factor = scaling.number("factor")
    rope = dataclasses.replace(
        rope,
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=scaling.integer("original_max_position_embeddings", max_model_len),
        beta_fast=scaling.number("beta_fast", rope.beta_fast),
        beta_slow=scaling.number("beta_slow", rope.beta_slow),
        truncated=scaling.flag("truncate", default=True),
        attention_factor=scaling.number("attention_factor", _yarn_attention_factor(scaling, factor)),
    )
    if rope.beta_fast <= rope.beta_slow:
        scaling.refuse("beta_fast", f"must be above beta_slow {rope.beta_slow:g}")
    return rope


def _yarn_attention_factor(scaling: Fields, factor: float) -> float:
    """Peng et al. 2023, "YaRN", section 3.3, and as transformers' `_compute_yarn_parameters` has it of models that say
    `mscale`."""
    above, below = scaling.optional_number("mscale"), scaling.optional_number("mscale_all_dim")

    def grown(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    return grown(1.0) if above is None or below is None else grown(above) / grown(below)


def _read_longrope(
    fields: Fields, scaling: Fields, rope: RopeConfig, *, head_dim: int, max_model_len: int
) -> RopeConfig:
    name = "original_max_position_embeddings"
    original = fields.integer(name, scaling.integer(name, _LONGROPE_CONTEXT))
    num_pairs = rope.rotary_dim(head_dim) // 2
    factor = scaling.number("factor", max_model_len / original)
    long_factors = scaling.numbers("long_factor", count=num_pairs)
    return dataclasses.replace(
        rope,
        kind="longrope",
        factor=factor,
        original_max_position_embeddings=original,
        short_factors=scaling.numbers("short_factor", count=num_pairs),
        long_factors=long_factors if max_model_len > original else (),
        attention_factor=scaling.number("attention_factor", _longrope_attention_factor(factor, original)),
    )


def _longrope_attention_factor(factor: float, original: int) -> float:
    """Ding et al. 2024, "LongRoPE", as Phi-3's own code and transformers' `_compute_longrope_parameters` have it."""
    return 1.0 if factor <= 1 or original < 2 else math.sqrt(1 + math.log(factor) / math.log(original))
