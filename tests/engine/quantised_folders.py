"""Model folders with quantised weights, in the layouts of those who publish them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from serving.engine.models.config import read_config
from serving.engine.models.layout import expected_tensors
from tests.engine.packing import Packer, Tensors, pack_awq, pack_compressed, pack_fp8, pack_gptq, pack_int8

_USUALLY_PLAIN = ("lm_head", "mlp.gate.", "block_sparse_moe.gate.")


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
