"""Weights packed as those pack them who publish quantised models, from the published descriptions.

Each packer returns the tensors of a module and the weights that these stand for, in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Tensors = dict[str, torch.Tensor]
Packer = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
_Array = npt.NDArray[Any]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


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
