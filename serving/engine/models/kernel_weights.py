"""A model's matrices as the C++ kernels can keep them: quantised ones without rounding them anew, where that can be."""

from __future__ import annotations

import dataclasses

import torch

from serving.engine.kernels.packing import COLUMNS, padded
from serving.engine.kernels.quantised import QuantisedMatrix, WeightFormat, group_of
from serving.engine.models.packed import PackedMatrix, PackedWeights, unpacked_quanta
from serving.engine.models.weights import Matrix

_ROUNDING = 2.0**-10
"""What fp16 is off at most, relative to a number that is not subnormal; twice that."""


def kernel_weights(matrix: Matrix, weight_format: WeightFormat) -> torch.Tensor | QuantisedMatrix:
    """`matrix` for `KernelMatrix`: quantised if it is so, and no other format is asked for, and the kernels have its
    like; otherwise in full, `[out, in]`, in the model's dtype.

    The kernels have whole numbers of 4 or 8 bits with a scale for 32 inputs, as many groups of which make a larger
    one. Offsets of 4 bits are rounded to fp16, by less than a hundredth of a step. They cannot gather inputs.
    """
    if weight_format == "bfloat16" and isinstance(matrix, PackedMatrix) and matrix.order is None:
        found = _quantised(matrix.weights)
        if found is not None:
            return found
    return matrix.plain()


def panels_in_turn(weights: torch.Tensor | QuantisedMatrix) -> torch.Tensor | QuantisedMatrix:
    """`weights`, the outputs of gate and then of up in their first dimension, with panels of the two in turn."""
    if isinstance(weights, torch.Tensor):
        return rows_in_turn(weights)
    return dataclasses.replace(
        weights,
        quanta=rows_in_turn(weights.quanta),
        scales=rows_in_turn(weights.scales),
        offsets=None if weights.offsets is None else rows_in_turn(weights.offsets),
    )


def rows_in_turn(rows: torch.Tensor) -> torch.Tensor:
    """As `panels_in_turn`, of what has something for each output."""
    gate, up = (padded(part, 0, COLUMNS) for part in rows.chunk(2))
    panels = (-1, COLUMNS, *rows.shape[1:])
    return torch.stack([gate.view(panels), up.view(panels)], dim=1).flatten(0, 2)


def _quantised(weights: PackedWeights) -> QuantisedMatrix | None:
    """The same weights in groups of the kernels' size; None where there is no such thing."""
    if weights.kind == "fp8":
        return None
    size = group_of(weights.kind)
    if weights.num_inputs % size:
        return None
    if weights.inputs_per_scale % size and weights.inputs_per_scale < weights.num_inputs:
        return None
    scales = _by_groups(weights.scales, weights, size)
    if weights.kind == "int8":
        has_offsets = weights.offsets is not None
        return None if has_offsets else QuantisedMatrix("int8", weights.quanta, scales, None)
    offsets = torch.zeros_like(scales) if weights.offsets is None else _by_groups(weights.offsets, weights, size)
    if not (_is_held_by_half(scales) and _is_held_by_half(offsets)):
        return None
    return QuantisedMatrix("int4", unpacked_quanta(weights), scales, offsets)


def _by_groups(values: torch.Tensor, weights: PackedWeights, size: int) -> torch.Tensor:
    """`values` `[out, groups]` of `weights` for groups of `size` inputs, fp32."""
    repeats = min(weights.inputs_per_scale, weights.num_inputs) // size
    return values.float().repeat_interleave(repeats, dim=1)[:, : weights.num_inputs // size].contiguous()


def _is_held_by_half(values: torch.Tensor) -> bool:
    """Whether fp16 holds `values` nearly; numbers that are not finite stay what they are."""
    sound = values.nan_to_num(0.0, 0.0, 0.0)
    return bool(((sound.half().float() - sound).abs() <= _ROUNDING * sound.abs()).all())
