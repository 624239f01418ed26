"""Weights in fewer bits: how they are made, what they stand for, and how the kernels want them laid out."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from serving.engine.kernels.packing import COLUMNS, panels_of

WeightFormat = Literal["bfloat16", "int8", "int4", "w8a8"]

GROUP = 32
"""Consecutive inputs of one output that share a scale."""


@dataclasses.dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """`quanta` int `[out, in]` with `scales` and, for int4, `offsets`, both fp32 `[out, in / GROUP]`; `in` is padded to
    a multiple of GROUP. A weight is scale · quantum + offset."""

    format: WeightFormat
    quanta: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None


def vocabulary_format(weight_format: WeightFormat) -> WeightFormat:
    """How the output layer is kept where the others are kept so: it bears 4 bits badly, and is one layer of many."""
    return "int8" if weight_format == "int4" else weight_format


def quantised(weight: torch.Tensor, weight_format: WeightFormat) -> QuantisedMatrix:
    """`weight` `[out, in]`, `in` a multiple of GROUP, in fewer bits.

    int8 and w8a8: symmetric about zero, the largest weight of a group at 127. int4: 16 steps from the least to the
    largest, with scales and offsets as fp16 holds them; weights that came from 4-bit groups of 32 with an offset
    (GGUF's Q4_1) are found again as they were.
    """
    groups = weight.float().view(len(weight), -1, GROUP)
    if weight_format != "int4":
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
    weights = matrix.quanta.float().view(num_outputs, -1, GROUP) * matrix.scales[..., None]
    if matrix.offsets is not None:
        weights += matrix.offsets[..., None]
    return weights.view(num_outputs, -1)


def packed_quanta(matrix: QuantisedMatrix) -> torch.Tensor:
    """Bytes `[out / 16, in / 32, bytes a block]` as `kernels/quantised.h` describes them; `out` is a multiple of 16."""
    scales = _by_panel(matrix.scales)
    if matrix.format == "w8a8":
        num_panels = len(matrix.quanta) // COLUMNS
        # [panels, outputs, blocks, vectors, inputs of a vector] → [panels, blocks, vectors, outputs, inputs]
        quanta = matrix.quanta.view(num_panels, COLUMNS, -1, GROUP // 4, 4).permute(0, 2, 3, 1, 4)
        shifted = (quanta.to(torch.int16) + 128).to(torch.uint8)
        return torch.cat([_bytes(scales), shifted.flatten(2)], dim=-1)
    panels = panels_of(matrix.quanta.to(torch.int32))
    # [panels, blocks, vectors, pairs of a vector, words]
    blocks = panels.view(len(panels), -1, GROUP // 8, 4, 2 * COLUMNS)
    if matrix.offsets is None:
        return torch.cat([_bytes(scales), _words(blocks & 15), _words(blocks >> 4 & 15)], dim=-1)
    halves = [scales.half(), _by_panel(matrix.offsets).half()]
    return torch.cat([*map(_bytes, halves), _words(blocks)], dim=-1)


def _words(nibbles: torch.Tensor) -> torch.Tensor:
    """The bytes of words made of nibbles `[panels, blocks, vectors, 4, words]`, the first pair's nibble lowest."""
    shifts = torch.tensor([0, 4, 8, 12], dtype=torch.int32)[:, None]
    words = (nibbles << shifts).sum(dim=3, dtype=torch.int32).to(torch.int16)
    return _bytes(words.flatten(2))


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


def _by_panel(values: torch.Tensor) -> torch.Tensor:
    """`[out, groups]` as `[out / 16, groups, 16]`."""
    return values.view(-1, COLUMNS, values.shape[1]).transpose(1, 2)
