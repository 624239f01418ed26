"""What a model folder's `config.json` says of weights in fewer bits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from serving.engine.models.fields import Fields
from serving.engine.models.packed import Kind

Method = Literal["awq", "gptq", "fp8", "fbgemm_fp8", "compressed-tensors"]

_SUPPORTED = (
    "awq (4 bits, version gemm), gptq (4 and 8 bits), fp8 and fbgemm_fp8 (float8_e4m3fn), and compressed-tensors "
    "(pack-quantized of 4 and 8 bits, int-quantized of 8 bits, float-quantized of 8 bits)"
)
_WHOLE_ROW = -1
_GROUP_MULTIPLE = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How a folder's quantised weights are stored. Which modules are, their tensors say: a module has quantised ones,
    or a plain weight, as lists such as `ignore` and `modules_to_not_convert` only repeat.

    `group_size` inputs share a scale, all where it is 0; None where modules may differ, so that their tensors alone
    say. `block` outputs by inputs share one where fp8 is scaled by blocks. `zeros_less_one`: GPTQ's first format stores
    zero points so. `quantises_activations`: so the recipe says; here activations stay in the model's dtype.
    """

    method: Method
    kinds: tuple[Kind, ...]
    group_size: int | None = None
    block: tuple[int, int] | None = None
    zeros_less_one: bool = False
    bits: int | None = None
    """Of GPTQ's quanta; None where modules may differ."""
    quantises_activations: bool = False

    @property
    def text(self) -> str:
        """In a word or two, as `awq int4`."""
        kinds = "+".join(self.kinds)
        return kinds if self.method == "fp8" else f"{self.method.removesuffix('_fp8')} {kinds}"


def read_quantisation(fields: Fields) -> Quantisation | None:
    """What `quantization_config` in a `config.json`, `fields`, says; None where there is none.

    Raises `ModelFolderProblem` naming the field that is not supported, and what is.
    """
    own = fields.part("quantization_config")
    if own is None:
        return None
    method = own.get("quant_method")
    read = _READERS.get(method) if isinstance(method, str) else None
    if read is None:
        own.refuse("quant_method", f"{method!r} is not supported; supported are {_SUPPORTED}")
    return read(own)


def _awq(fields: Fields) -> Quantisation:
    # The method's own tool calls them otherwise than Transformers does.
    bits = "bits" if fields.get("bits") is not None or fields.get("w_bit") is None else "w_bit"
    size = "group_size" if fields.get("q_group_size") is None else "q_group_size"
    _choice(fields, bits, [4])
    version = "version" if fields.get("version") is not None else "format"
    _choice(fields, version, ["gemm"], default="gemm")
    fields.flag("zero_point", default=True)  # zero points are stored either way
    return Quantisation(method="awq", kinds=("int4",), group_size=_group_size(fields, size, default=128), bits=4)


def _gptq(fields: Fields) -> Quantisation:
    bits = _choice(fields, "bits", [4, 8])
    name = "checkpoint_format" if fields.get("checkpoint_format") is not None else "format"
    stored = _choice(fields, name, ["gptq", "gptq_v2"], default="gptq")
    _choice(fields, "pack_dtype", ["int32"], default="int32")
    if fields.get("is_marlin_format"):
        fields.refuse("is_marlin_format", "the layout of Marlin's kernels is not supported; supported is gptq")
    group_size = _group_size(fields, default=128)
    is_uniform = not fields.get("dynamic")
    return Quantisation(
        method="gptq",
        kinds=("int4",) if bits == 4 else ("int8",),
        group_size=group_size if is_uniform else None,
        bits=None if not is_uniform else 4 if bits == 4 else 8,
        zeros_less_one=stored == "gptq",
    )


def _fp8(fields: Fields) -> Quantisation:
    _choice(fields, "fmt", ["e4m3", "float8_e4m3fn"], default="e4m3")
    _choice(fields, "activation_scheme", ["dynamic", "static"], default="dynamic")
    _choice(fields, "scale_fmt", ["float", "ue8m0"], default="float")
    _choice(fields, "expert_dtype", ["fp8"], default="fp8")
    block = _block(fields, "weight_block_size")
    return Quantisation(method="fp8", kinds=("fp8",), block=block, quantises_activations=True)


def _fbgemm_fp8(fields: Fields) -> Quantisation:
    return Quantisation(method="fbgemm_fp8", kinds=("fp8",), quantises_activations=True)


def _compressed_tensors(fields: Fields) -> Quantisation:
    # Older writers call what they stored frozen: it is in the same layouts.
    _choice(fields, "quantization_status", ["compressed", "frozen"], default="compressed")
    for name in ("sparsity_config", "transform_config"):
        part = fields.part(name)
        if part is not None and any(part.values.values()) and part.get("format") != "dense":
            fields.refuse(name, "is not supported; supported are dense weights that are quantised as they are")
    groups = _needed_part(fields, "config_groups")
    parts = [_needed_part(groups, str(name)) for name in groups.values]
    # A group may be of what attention computes: no weights are quantised by it.
    schemes = [_scheme(fields, part) for part in parts if part.get("weights") is not None]
    if not schemes:
        fields.refuse("config_groups", "names no group of weights")
    sizes = {scheme.group_size for scheme in schemes}
    blocks = {scheme.block for scheme in schemes if scheme.block}
    if len(blocks) > 1:
        fields.refuse("config_groups", f"has blocks of several sizes, {sorted(blocks)}; supported is one")
    return Quantisation(
        method="compressed-tensors",
        kinds=tuple(dict.fromkeys(kind for scheme in schemes for kind in scheme.kinds)),
        group_size=sizes.pop() if len(sizes) == 1 else None,
        block=blocks.pop() if blocks else None,
        quantises_activations=any(scheme.quantises_activations for scheme in schemes),
    )


def _scheme(whole: Fields, group: Fields) -> Quantisation:
    """One of the groups of modules that compressed-tensors quantises alike."""
    supported = ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized"]
    _choice(group if group.get("format") is not None else whole, "format", supported)
    weights = _needed_part(group, "weights")
    is_float = _choice(weights, "type", ["int", "float"], default="int") == "float"
    bits = _choice(weights, "num_bits", [8] if is_float else [4, 8])
    strategies = ["tensor", "channel", "block"] if is_float else ["channel", "group", "tensor"]
    strategy = _choice(weights, "strategy", strategies)
    return Quantisation(
        method="compressed-tensors",
        kinds=("fp8",) if is_float else ("int4",) if bits == 4 else ("int8",),
        group_size=_group_size(weights) if strategy == "group" else 0,
        block=_block(weights, "block_structure") if strategy == "block" else None,
        quantises_activations=group.get("input_activations") is not None,
    )


def _needed_part(fields: Fields, name: str) -> Fields:
    part = fields.part(name)
    if part is None:
        fields.refuse(name, "is missing")
    return part


def _choice(
    fields: Fields, name: str, supported: Sequence[int | str], *, default: int | str | None = None
) -> int | str:
    """The value of `name`, one of `supported`; words in any case."""
    given = fields.get(name)
    value = default if given is None else given
    value = value.lower() if isinstance(value, str) else value
    # True is equal to 1.
    if isinstance(value, bool) or not isinstance(value, int | str) or value not in supported:
        fields.refuse(name, f"{given!r} is not supported; supported are {', '.join(map(str, supported))}")
    return value


def _group_size(fields: Fields, name: str = "group_size", *, default: int | None = None) -> int:
    """How many inputs share a scale, 0 for all."""
    given = fields.get(name)
    value = default if given is None else given
    if isinstance(value, bool) or not isinstance(value, int) or (value != _WHOLE_ROW and not _is_group_size(value)):
        fields.refuse(name, f"must be {_WHOLE_ROW} or a multiple of {_GROUP_MULTIPLE}, not {given!r}")
    return 0 if value == _WHOLE_ROW else value


def _is_group_size(value: int) -> bool:
    return value > 0 and value % _GROUP_MULTIPLE == 0


def _block(fields: Fields, name: str) -> tuple[int, int] | None:
    """Outputs and inputs of a block, as `[128, 128]` or `128x128`; None where nothing is said."""
    given = fields.get(name)
    if given is None:
        return None
    value: Any = given
    if isinstance(given, str) and re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", given):
        value = [int(size) for size in given.split("x")]
    if not isinstance(value, list) or len(value) != 2 or not all(type(size) is int and size > 0 for size in value):
        fields.refuse(name, f"must be two positive numbers, outputs and inputs, not {given!r}")
    return value[0], value[1]


_READERS: dict[str, Callable[[Fields], Quantisation]] = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "compressed-tensors": _compressed_tensors,
}
