"""Weights from a model folder's safetensors files, checked by name and shape before one of them is read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from serving.engine.models.config import ModelConfig
from serving.engine.models.problem import ModelFolderProblem

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_LOADABLE_DTYPES = frozenset({"BF16", "F16", "F32", "F64"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Weight shapes are `[out, in]`; queries, keys and values are fused, and so are gate and up."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """A whole decoder. `vocabulary` is `embedding` itself where the model ties them; both `[vocab_size, hidden]`."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    vocabulary: torch.Tensor


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape by name of every tensor that a folder with this configuration must hold."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    return shapes


def check_weights(folder: Path, config: ModelConfig) -> None:
    """Compare names, shapes and dtypes with what `config` asks for, reading headers only.

    Raises `ModelFolderProblem` naming the first tensor that is missing, unexpected or of another shape or dtype.
    """
    with _opened(folder) as files:
        _check(folder, config, files)


def load_weights(folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Read the folder's weights by memory map and convert them to `dtype` on `device`.

    Nothing refers to the files afterwards. Raises `ModelFolderProblem` as `check_weights` does.
    """
    with _opened(folder) as files:
        _check(folder, config, files)

        def read(name: str) -> torch.Tensor:
            # A copy always, aligned as arithmetic likes it: pages of a file that is replaced must not stay in use.
            stored: torch.Tensor = files[name].get_tensor(name)
            return stored.to(device=device, dtype=dtype, copy=True).contiguous()

        embedding = read("model.embed_tokens.weight")
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(_read_layer(config, _prefixed(read, layer)) for layer in range(config.num_layers)),
            final_norm=read("model.norm.weight"),
            vocabulary=embedding if config.tie_word_embeddings else read("lm_head.weight"),
        )


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    if config.qkv_bias:
        shapes |= {f"self_attn.{part}_proj.bias": (size,) for part, size in (("q", queries), ("k", keys), ("v", keys))}
    if config.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.mlp_bias:
        sizes = {"gate": intermediate, "up": intermediate, "down": hidden}
        shapes |= {f"mlp.{part}_proj.bias": (size,) for part, size in sizes.items()}
    if config.qk_norm:
        shapes |= {f"self_attn.{part}_norm.weight": (config.head_dim,) for part in ("q", "k")}
    return shapes


def _prefixed(read: Callable[[str], torch.Tensor], layer: int) -> Callable[[str], torch.Tensor]:
    return lambda name: read(f"model.layers.{layer}.{name}")


def _read_layer(config: ModelConfig, read: Callable[[str], torch.Tensor]) -> LayerWeights:
    def read_if(wanted: bool, *names: str) -> torch.Tensor | None:  # noqa: FBT001
        return torch.cat([read(name) for name in names]) if wanted else None

    def read_fused(*names: str) -> torch.Tensor:
        return torch.cat([read(name) for name in names])

    return LayerWeights(
        input_norm=read("input_layernorm.weight"),
        qkv=read_fused("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        qkv_bias=read_if(config.qkv_bias, "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        query_norm=read_if(config.qk_norm, "self_attn.q_norm.weight"),
        key_norm=read_if(config.qk_norm, "self_attn.k_norm.weight"),
        output=read("self_attn.o_proj.weight"),
        output_bias=read_if(config.output_bias, "self_attn.o_proj.bias"),
        mlp_norm=read("post_attention_layernorm.weight"),
        gate_up=read_fused("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        gate_up_bias=read_if(config.mlp_bias, "mlp.gate_proj.bias", "mlp.up_proj.bias"),
        down=read("mlp.down_proj.weight"),
        down_bias=read_if(config.mlp_bias, "mlp.down_proj.bias"),
    )


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[dict[str, Any]]:
    """The open safetensors file of every tensor, by the tensor's name."""
    with contextlib.ExitStack() as stack:
        by_tensor: dict[str, Any] = {}
        for name in _weight_files(folder):
            try:
                file = stack.enter_context(safe_open(folder / name, framework="pt", device="cpu"))
            except FileNotFoundError:
                raise ModelFolderProblem(folder, name, "there is no such file") from None
            except (OSError, SafetensorError) as error:
                raise ModelFolderProblem(folder, name, f"cannot be read as safetensors ({error})") from None
            for tensor in file.keys():  # noqa: SIM118 (no mapping)
                if tensor in by_tensor:
                    raise ModelFolderProblem(folder, name, f"holds {tensor}, and so does another file")
                by_tensor[tensor] = file
        yield by_tensor


def _weight_files(folder: Path) -> list[str]:
    if (folder / _SINGLE_FILE).exists():
        return [_SINGLE_FILE]
    if not (folder / _INDEX_FILE).exists():
        raise ModelFolderProblem(folder, _SINGLE_FILE, f"there is neither this file nor {_INDEX_FILE}")
    try:
        files = set(json.loads((folder / _INDEX_FILE).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFolderProblem(folder, _INDEX_FILE, f"cannot be read ({error!r})") from None
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelFolderProblem(folder, _INDEX_FILE, f"names {name!r}, which is not a file of this folder")
    return sorted(files)


def _check(folder: Path, config: ModelConfig, files: Mapping[str, Any]) -> None:
    expected = expected_tensors(config)
    for name, shape in expected.items():
        if name not in files:
            raise ModelFolderProblem(folder, name, "this tensor is missing")
        header = files[name].get_slice(name)
        if tuple(header.get_shape()) != shape:
            raise ModelFolderProblem(folder, name, f"has shape {header.get_shape()}, not {list(shape)}")
        if header.get_dtype() not in _LOADABLE_DTYPES:
            supported = ", ".join(sorted(_LOADABLE_DTYPES))
            raise ModelFolderProblem(folder, name, f"has dtype {header.get_dtype()}; supported are {supported}")
    for name in files:
        if name not in expected and not _is_redundant(config, name):
            raise ModelFolderProblem(folder, name, "this tensor is not expected")


def _is_redundant(config: ModelConfig, name: str) -> bool:
    """Older files carry rotary frequencies, and tied models sometimes their output layer: both follow from the rest."""
    if name.endswith(".rotary_emb.inv_freq"):
        return True
    return config.tie_word_embeddings and name == "lm_head.weight"
