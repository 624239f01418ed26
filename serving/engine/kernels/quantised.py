"""Weights in fewer bits: how they are made, what they stand for, and how the kernels want them laid out."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import torch

from serving.engine.kernels.packing import COLUMNS, INNER_MULTIPLE, padded

WeightFormat = Literal["bfloat16", "int8", "int4", "w8a8"]

PANELS = 2
"""Panels that lie in one another."""
_PART_WEIGHTS = 1 << 24
_LEAST = 1e-30
"""Activations with nothing larger count as zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """`quanta` int `[out, in]` with `scales` and, for int4, `offsets`, both fp32 `[out, in / group_of(format)]`.
    A weight is scale · quantum + offset, and with w8a8 one of a rotated group."""

    format: WeightFormat
    quanta: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None


def group_of(weight_format: WeightFormat) -> int:
    """How many consecutive inputs of one output share a scale."""
    return 64 if weight_format == "w8a8" else 32


def vocabulary_format(weight_format: WeightFormat) -> WeightFormat:
    """How the output layer is kept where the others are kept so: it bears 4 bits badly, and is one layer of many."""
    return "int8" if weight_format == "int4" else weight_format


def quantised(weight: torch.Tensor, weight_format: WeightFormat) -> QuantisedMatrix:
    """`weight` `[out, in]`, `in` a multiple of `INNER_MULTIPLE`, in fewer bits.

    int8 and w8a8: symmetric about zero, the largest weight of a group at 127. int4: 16 steps from the least to the
    largest, with scales and offsets as fp16 holds them; weights that came from 4-bit groups of 32 with an offset
    (GGUF's Q4_1) are found again as they were. Takes memory for some outputs in fp32 at a time.
    """
    parts = [_quantised(part, weight_format) for part in torch.split(weight, max(1, _PART_WEIGHTS // weight.shape[1]))]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return QuantisedMatrix(
        weight_format,
        torch.cat([part.quanta for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(offsets) if offsets else None,
    )


def _quantised(weight: torch.Tensor, weight_format: WeightFormat) -> QuantisedMatrix:
    groups = weight.float().view(len(weight), -1, group_of(weight_format))
    if weight_format != "int4":
        if weight_format == "w8a8":
            groups = groups @ _rotation(groups.device) / group_of("w8a8")
        scales = groups.abs().amax(dim=-1) / 127
        quanta = (groups / scales.clamp(min=1e-30)[..., None]).round().clamp(-127, 127)
        return QuantisedMatrix(weight_format, quanta.to(torch.int8).flatten(1), scales, None)
    offsets = groups.amin(dim=-1).half().float()
    scales = ((groups.amax(dim=-1) - offsets) / 15).half().float()
    quanta = ((groups - offsets[..., None]) / scales.clamp(min=1e-30)[..., None]).round().clamp(0, 15)
    return QuantisedMatrix(weight_format, quanta.to(torch.uint8).flatten(1), scales, offsets)


def dequantised(matrix: QuantisedMatrix) -> torch.Tensor:
    """The weights that `matrix` stands for, fp32 `[out, in]`."""
    num_outputs = len(matrix.quanta)
    weights = matrix.quanta.float().view(num_outputs, -1, group_of(matrix.format)) * matrix.scales[..., None]
    if matrix.offsets is not None:
        weights += matrix.offsets[..., None]
    if matrix.format == "w8a8":
        weights = weights @ _rotation(weights.device)
    return weights.view(num_outputs, -1)


def rounded_weights(weight: torch.Tensor, weight_format: WeightFormat) -> torch.Tensor:
    """What a product in this format makes of `weight` `[out, in]`: `[out, in]`, `in` padded to `INNER_MULTIPLE`."""
    whole = padded(weight, 1, INNER_MULTIPLE)
    return whole if weight_format == "bfloat16" else dequantised(quantised(whole, weight_format))


def rounded_rows(rows: torch.Tensor, weight_format: WeightFormat) -> torch.Tensor:
    """What a product with weights in this format makes of activations `rows` `[num_rows, in]`: fp64 `[num_rows, in]`,
    `in` padded to `INNER_MULTIPLE`.

    int8 and int4: whole numbers of 14 bits and a sign, the largest of a row at 16319. w8a8: bytes, the largest of each
    group at 127, after the group is rotated.
    """
    rows = padded(rows, 1, INNER_MULTIPLE)
    if weight_format == "bfloat16":
        return rows.double()
    if weight_format != "w8a8":
        return _rounded(rows.float(), most=127 * 128 + 63)
    rotation = _rotation(rows.device)
    groups = rows.float().view(len(rows), -1, group_of(weight_format)) @ rotation
    return (_rounded(groups, most=127) @ rotation.double() / len(rotation)).view(len(rows), -1)


def _rounded(values: torch.Tensor, *, most: int) -> torch.Tensor:
    """`values` `[..., size]` on whole steps, the largest of each last dimension at `most`."""
    largest = values.abs().amax(dim=-1, keepdim=True)
    # Divided as the kernels divide: most / largest would be rounded twice.
    inverse = torch.where(largest > _LEAST, torch.full_like(largest, most).div(largest), 0.0)
    return (values * inverse).round().double() * (largest.double() / most)


def padded_to_panels(matrix: QuantisedMatrix) -> QuantisedMatrix:
    """`matrix` with weights of zero up to whole panels of outputs, and up to `INNER_MULTIPLE` inputs."""
    outputs, groups = PANELS * COLUMNS, INNER_MULTIPLE // group_of(matrix.format)

    def whole(values: torch.Tensor, inner: int) -> torch.Tensor:
        return padded(padded(values, 0, outputs), 1, inner)

    return dataclasses.replace(
        matrix,
        quanta=whole(matrix.quanta, INNER_MULTIPLE),
        scales=whole(matrix.scales, groups),
        offsets=None if matrix.offsets is None else whole(matrix.offsets, groups),
    )


def packed_quanta(matrix: QuantisedMatrix) -> torch.Tensor:
    """Bytes `[out / 32, in / group, bytes a block]` as `kernels/quantised.h` has it; `out` is a multiple of 32."""
    scales = _by_panels(matrix.scales)
    # [panels, outputs, blocks, vectors, inputs of a vector] → [panels, blocks, vectors, outputs, inputs]
    quanta = matrix.quanta.view(len(scales), PANELS * COLUMNS, scales.shape[1], -1, 4).permute(0, 2, 3, 1, 4)
    if matrix.offsets is None:
        shifted = (quanta.to(torch.int16) + 128).to(torch.uint8)
        return torch.cat([_bytes(scales), shifted.flatten(2)], dim=-1)
    nibbles = quanta[:, :, ::2] | quanta[:, :, 1::2] << 4
    halves = [scales.half(), _by_panels(matrix.offsets).half()]
    return torch.cat([*map(_bytes, halves), nibbles.flatten(2)], dim=-1)


@functools.cache
def _rotation(device: torch.device) -> torch.Tensor:
    """The Hadamard matrix of a group, fp32 `[64, 64]`: entries 1 and -1, its own inverse but for the factor 64."""
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < group_of("w8a8"):
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return matrix


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


def _by_panels(values: torch.Tensor) -> torch.Tensor:
    """`[out, groups]` as `[out / 32, groups, 32]`, contiguous."""
    return values.view(-1, PANELS * COLUMNS, values.shape[1]).transpose(1, 2).contiguous()
