"""Model folders with quantised weights in the layouts of those who publish them, made from the published descriptions.

Each packer returns the tensors of a module and the weights that these stand for, in fp32.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from serving.engine.models.config import read_config
from serving.engine.models.layout import expected_tensors

Tensors = dict[str, torch.Tensor]
Packer = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
_Array = npt.NDArray[Any]

_USUALLY_PLAIN = ("lm_head", "mlp.gate.", "block_sparse_moe.gate.")
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A way to store quantised weights: what `config.json` says of it, how a weight `[out, in]` is packed, and which
    modules are not."""

    config: dict[str, Any]
    pack: Packer
    plain: tuple[str, ...] = _USUALLY_PLAIN
    text: str = ""


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
"""Of a model as small as layouts allow."""


def save_random_model(folder: Path) -> Path:
    """Save the model of `CONFIG` with random weights, fp32, some of which lie well off zero, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    generator = torch.Generator().manual_seed(11)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.1 + (0.3 if "v_proj" in name else 0.0)
        for name, shape in expected_tensors(read_config(folder)).items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def quantise_folder(source: Path, target: Path, layout: Layout, *, plain_dtype: torch.dtype = torch.float16) -> Path:
    """Write the model of `source` with quantised weights into `target`, and return it. Beside it, in `target` with
    `-plain` behind its name, lies the same model with the weights in full, fp32.

    What is not quantised is stored in `plain_dtype`.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(source / "model.safetensors")
    quantised: Tensors = {}
    plain: Tensors = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if tensor.dim() != 2 or "embed_tokens" in name or any(part in name for part in layout.plain):
            quantised[name] = tensor.to(plain_dtype)
            plain[name] = quantised[name].float()
            continue
        stored, plain[name] = layout.pack(tensor.float())
        quantised |= {f"{module}.{part}": value.contiguous() for part, value in stored.items()}
    _write(target, config | {"quantization_config": layout.config}, quantised)
    _write(target.with_name(f"{target.name}-plain"), config, plain)
    return target


def _write(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def rounded_in_groups(
    weight: torch.Tensor, *, bits: int, group_size: int, symmetric: bool
) -> tuple[_Array, _Array, _Array]:
    """`weight` `[out, in]` on whole steps: quanta `[out, in]` and zeros `[out, groups]`, 0 to 2^bits - 1, and scales
    `[out, groups]` as fp16 holds them."""
    values = weight.numpy().astype(np.float64)
    size = values.shape[1] if group_size < 0 else group_size
    groups = values.reshape(len(values), -1, size)
    most = 2**bits - 1
    if symmetric:
        scales = np.abs(groups).max(-1) / (most // 2)
        zeros = np.full(scales.shape, (most + 1) // 2)
    else:
        low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
        scales = (high - low) / most
        zeros = np.clip(np.round(-low / scales), 0, most).astype(np.int64)
    scales = scales.astype(np.float16).astype(np.float64)
    quanta = np.clip(np.round(groups / scales[..., None]) + zeros[..., None], 0, most).astype(np.int64)
    return quanta.reshape(values.shape), zeros, scales


def meaning(quanta: _Array, zeros: _Array, scales: _Array) -> torch.Tensor:
    """scale · (quantum - zero), fp32 `[out, in]`, for quanta `[out, in]`, zeros and scales `[out, groups]`."""
    groups = quanta.reshape(len(quanta), zeros.shape[1], -1)
    return torch.from_numpy(((groups - zeros[..., None]) * scales[..., None]).reshape(quanta.shape).astype(np.float32))


def words(values: _Array, *, bits: int, axis: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Numbers of `bits` bits packed along `axis` into int32, the first of a word in its lowest bits, or number
    order[j] in its place j."""
    each = 32 // bits
    moved = np.moveaxis(values, axis, -1).astype(np.int64)
    grouped = moved.reshape(*moved.shape[:-1], -1, each)
    if order is not None:
        grouped = grouped[..., list(order)]
    packed = sum(grouped[..., place] << (bits * place) for place in range(each))
    signed = np.asarray(packed).astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(signed, -1, axis)))


def pack_awq(weight: torch.Tensor, *, group_size: int) -> tuple[Tensors, torch.Tensor]:
    quanta, zeros, scales = rounded_in_groups(weight, bits=4, group_size=group_size, symmetric=False)
    stored = {
        "qweight": words(quanta.T, bits=4, axis=1, order=_AWQ_ORDER),
        "qzeros": words(zeros.T, bits=4, axis=1, order=_AWQ_ORDER),
        "scales": torch.from_numpy(scales.T.astype(np.float16)),
    }
    return stored, meaning(quanta, zeros, scales)


def pack_gptq(
    weight: torch.Tensor,
    *,
    group_size: int,
    bits: int = 4,
    symmetric: bool = True,
    zeros_less_one: bool = True,
    order: str = "in order",
    with_bias: bool = False,
) -> tuple[Tensors, torch.Tensor]:
    """`order` in which the inputs were quantised: "in order", or "by size", with which `g_idx` is no staircase."""
    size = weight.shape[1] if group_size < 0 else group_size
    by_size = torch.argsort(torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(weight.shape[1])))
    chosen = torch.arange(weight.shape[1]) if order == "in order" else by_size
    quanta, zeros, scales = rounded_in_groups(weight[:, chosen], bits=bits, group_size=size, symmetric=symmetric)
    found = meaning(quanta, zeros, scales)
    place = torch.argsort(chosen)
    quanta, found = quanta[:, place.numpy()], found[:, place]
    stored_zeros = words(zeros.T, bits=bits, axis=1)
    if zeros_less_one:
        stored_zeros = stored_zeros - (0x11111111 if bits == 4 else 0x01010101)
    stored = {
        "qweight": words(quanta.T, bits=bits, axis=0),
        "qzeros": stored_zeros,
        "scales": torch.from_numpy(scales.T.astype(np.float16)),
        "g_idx": (place // size).to(torch.int32),
    }
    if with_bias:
        stored["bias"] = torch.zeros(len(weight), dtype=torch.float16)
    return stored, found


def pack_fp8(
    weight: torch.Tensor,
    *,
    scaled_by: str,
    block: tuple[int, int] = (128, 128),
    scale_name: str = "weight_scale",
    scale_dtype: torch.dtype = torch.float32,
    input_scale: bool = False,
) -> tuple[Tensors, torch.Tensor]:
    """`scaled_by` "tensor", "channel" or "block"."""
    outputs, inputs = weight.shape
    height, width = {"tensor": (outputs, inputs), "channel": (1, inputs), "block": block}[scaled_by]
    rows, columns = math.ceil(outputs / height), math.ceil(inputs / width)
    quanta = torch.empty(outputs, inputs, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, columns)
    found = torch.empty(outputs, inputs)
    for row in range(rows):
        for column in range(columns):
            part = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
            scale = (weight[part].abs().max() / 448).clamp(min=1e-12)
            if scale_dtype == torch.float8_e8m0fnu:
                scale = torch.exp2(scale.log2().ceil())
            scales[row, column] = scale.to(scale_dtype).float()
            quanta[part] = (weight[part] / scales[row, column]).clamp(-448, 448).to(torch.float8_e4m3fn)
            found[part] = quanta[part].float() * scales[row, column]
    stored = {"weight": quanta, scale_name: scales.to(scale_dtype)}
    if scaled_by == "tensor":
        stored[scale_name] = scales.reshape(()).to(scale_dtype)
    if input_scale:
        stored["input_scale"] = torch.ones(1)
    return stored, found


def pack_compressed(
    weight: torch.Tensor, *, bits: int, group_size: int, symmetric: bool, by_size: bool = False
) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors' `pack-quantized`: all numbers with half the range added, zeros packed along the outputs."""
    size = weight.shape[1] if group_size < 0 else group_size
    chosen = torch.argsort(weight.abs().sum(0)) if by_size else torch.arange(weight.shape[1])
    quanta, zeros, scales = rounded_in_groups(weight[:, chosen], bits=bits, group_size=size, symmetric=symmetric)
    place = torch.argsort(chosen)
    found = meaning(quanta, zeros, scales)[:, place]
    stored = {
        "weight_packed": words(quanta[:, place.numpy()], bits=bits, axis=1),
        "weight_scale": torch.from_numpy(scales.astype(np.float16)),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        each = 32 // bits
        whole = np.pad(zeros, ((0, -len(zeros) % each), (0, 0)))
        stored["weight_zero_point"] = words(whole, bits=bits, axis=0)
    if by_size:
        stored["weight_g_idx"] = (place // size).to(torch.int32)
    return stored, found


def pack_int8(weight: torch.Tensor, *, group_size: int, symmetric: bool = True) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors' `int-quantized`: bytes with sign."""
    quanta, zeros, scales = rounded_in_groups(weight, bits=8, group_size=group_size, symmetric=symmetric)
    stored = {
        "weight": torch.from_numpy((quanta - 128).astype(np.int8)),
        "weight_scale": torch.from_numpy(scales.astype(np.float32)).bfloat16(),
    }
    kept = stored["weight_scale"].double().numpy()
    if not symmetric:
        stored["weight_zero_point"] = torch.from_numpy((zeros - 128).astype(np.int8))
    return stored, meaning(quanta, zeros, kept)


def compressed_config(form: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What compressed-tensors writes for one group of all linear layers."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": more.pop("input_activations", None)}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "sparsity_config": {},
        "transform_config": {},
        "kv_cache_scheme": None,
    } | more


def gptq_config(**changes: Any) -> dict[str, Any]:
    """What AutoGPTQ writes, with changes."""
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True} | changes


_DYNAMIC = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}

LAYOUTS: dict[str, Layout] = {
    "awq": Layout(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        lambda weight: pack_awq(weight, group_size=32),
        text="awq int4",
    ),
    "awq-whole-rows": Layout(
        {"quant_method": "awq", "bits": 4, "group_size": -1, "version": "GEMM", "modules_to_not_convert": ["o_proj"]},
        lambda weight: pack_awq(weight, group_size=-1),
        plain=("lm_head", "o_proj"),
        text="awq int4",
    ),
    "awq-some-plain": Layout(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["k_proj", "layers.1.mlp"]},
        lambda weight: pack_awq(weight, group_size=32),
        plain=("lm_head", "k_proj", "layers.1.mlp"),
        text="awq int4",
    ),
    "gptq": Layout(gptq_config(), lambda weight: pack_gptq(weight, group_size=32, with_bias=True), text="gptq int4"),
    "gptq-asymmetric": Layout(
        gptq_config(sym=False), lambda weight: pack_gptq(weight, group_size=32, symmetric=False), text="gptq int4"
    ),
    "gptq-v2": Layout(
        gptq_config(sym=False, checkpoint_format="gptq_v2"),
        lambda weight: pack_gptq(weight, group_size=32, symmetric=False, zeros_less_one=False),
        text="gptq int4",
    ),
    "gptq-by-size": Layout(
        gptq_config(desc_act=True), lambda weight: pack_gptq(weight, group_size=32, order="by size"), text="gptq int4"
    ),
    "gptq-8": Layout(
        gptq_config(bits=8, sym=False),
        lambda weight: pack_gptq(weight, group_size=32, bits=8, symmetric=False),
        text="gptq int8",
    ),
    "gptq-8-symmetric": Layout(
        gptq_config(bits=8, group_size=-1), lambda weight: pack_gptq(weight, group_size=-1, bits=8), text="gptq int8"
    ),
    "gptq-mixed": Layout(
        gptq_config(dynamic={r"+:.*mlp.*": {"bits": 8, "group_size": 96}}),
        lambda weight: (
            pack_gptq(weight, group_size=96, bits=8) if weight.shape[1] == 96 else pack_gptq(weight, group_size=32)
        ),
        text="gptq int4",
    ),
    "fp8-blocks": Layout(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        lambda weight: pack_fp8(weight, scaled_by="block", scale_name="weight_scale_inv"),
        text="fp8",
    ),
    "fp8-small-blocks": Layout(
        {"quant_method": "fp8", "weight_block_size": [24, 40]},
        lambda weight: pack_fp8(weight, scaled_by="block", block=(24, 40), scale_name="weight_scale_inv"),
        text="fp8",
    ),
    "fp8-even-blocks": Layout(
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        lambda weight: pack_fp8(weight, scaled_by="block", block=(32, 32), scale_name="weight_scale_inv"),
        text="fp8",
    ),
    "fp8-powers-of-two": Layout(
        {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
        lambda weight: pack_fp8(
            weight,
            scaled_by="block",
            block=(32, 32),
            scale_name="weight_scale_inv",
            scale_dtype=torch.float8_e8m0fnu,
        ),
        text="fp8",
    ),
    "fp8-static": Layout(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        lambda weight: pack_fp8(weight, scaled_by="tensor", input_scale=True),
        text="fp8",
    ),
    "fbgemm": Layout(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        lambda weight: pack_fp8(weight, scaled_by="channel"),
        text="fbgemm fp8",
    ),
    "compressed-fp8-channel": Layout(
        compressed_config(
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            input_activations=_DYNAMIC,
        ),
        lambda weight: pack_fp8(weight, scaled_by="channel", scale_dtype=torch.bfloat16),
        text="compressed-tensors fp8",
    ),
    "compressed-fp8-tensor": Layout(
        compressed_config(
            "float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, input_activations=_DYNAMIC
        ),
        lambda weight: pack_fp8(weight, scaled_by="tensor"),
        text="compressed-tensors fp8",
    ),
    "compressed-fp8-block": Layout(
        compressed_config(
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 32]},
            input_activations=_DYNAMIC,
        ),
        lambda weight: pack_fp8(weight, scaled_by="block", block=(64, 32)),
        text="compressed-tensors fp8",
    ),
    "compressed-int4": Layout(
        compressed_config(
            "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
        ),
        lambda weight: pack_compressed(weight, bits=4, group_size=32, symmetric=True),
        text="compressed-tensors int4",
    ),
    "compressed-int4-asymmetric": Layout(
        compressed_config(
            "pack-quantized",
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
        ),
        lambda weight: pack_compressed(weight, bits=4, group_size=32, symmetric=False),
        text="compressed-tensors int4",
    ),
    "compressed-int4-by-size": Layout(
        compressed_config(
            "pack-quantized",
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "actorder": "group"},
        ),
        lambda weight: pack_compressed(weight, bits=4, group_size=32, symmetric=True, by_size=True),
        text="compressed-tensors int4",
    ),
    "compressed-int8-packed": Layout(
        compressed_config("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}),
        lambda weight: pack_compressed(weight, bits=8, group_size=-1, symmetric=True),
        text="compressed-tensors int8",
    ),
    "compressed-int8": Layout(
        compressed_config(
            "int-quantized",
            {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            input_activations={"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        ),
        lambda weight: pack_int8(weight, group_size=-1),
        text="compressed-tensors int8",
    ),
    "compressed-int8-asymmetric": Layout(
        compressed_config("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}),
        lambda weight: pack_int8(weight, group_size=-1, symmetric=False),
        text="compressed-tensors int8",
    ),
}
"""Every layout that can be loaded."""
