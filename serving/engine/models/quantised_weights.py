"""A decoder's weights in fewer bits than its folder has, for who computes without the C++ kernels."""

from __future__ import annotations

import dataclasses

from serving.engine.kernels.packing import INNER_MULTIPLE, padded
from serving.engine.kernels.quantised import (
    QuantisedMatrix,
    WeightFormat,
    group_of,
    quantised,
    rounded_weights,
    vocabulary_format,
)
from serving.engine.models.matrices import all_in_memory
from serving.engine.models.packed import PackedMatrix, PackedWeights, packed_nibbles
from serving.engine.models.weights import DecoderWeights, Matrix, PlainMatrix


def in_format(weights: DecoderWeights, weight_format: WeightFormat) -> DecoderWeights:
    """The weights in memory, as `weight_format` keeps them: the quanta and scales of int8 and int4 are those of the C++
    kernels, and w8a8 is what it stands for, in full.

    `bfloat16` stands for what the folder has. Takes memory for one layer in full beside the result, where matrices of
    `weights` are read when they are asked for.
    """
    if weight_format == "bfloat16":
        return all_in_memory(weights)
    return dataclasses.replace(
        weights,
        layers=tuple(
            all_in_memory(layer).mapped(lambda matrix: _quantised(matrix, weight_format)) for layer in weights.layers
        ),
        vocabulary=_quantised(all_in_memory(weights.vocabulary), vocabulary_format(weight_format)),
    )


def _quantised(matrix: Matrix, weight_format: WeightFormat) -> Matrix:
    weight = matrix.plain()
    if weight_format == "w8a8" or (weight_format == "int4" and weight.shape[1] % 2):
        return PlainMatrix(rounded_weights(weight, weight_format)[:, : weight.shape[1]].to(weight.dtype), matrix.bias)
    whole = quantised(padded(weight, 1, INNER_MULTIPLE), weight_format)
    return PackedMatrix(_packed(whole, weight.shape[1]), matrix.bias, weight.dtype)


def _packed(matrix: QuantisedMatrix, num_inputs: int) -> PackedWeights:
    """`matrix` without the padding behind its `num_inputs` inputs."""
    size = group_of(matrix.format)
    num_groups = -(-num_inputs // size)
    quanta = matrix.quanta[:, :num_inputs].contiguous()
    scales = matrix.scales[:, :num_groups].contiguous()
    if matrix.offsets is None:
        return PackedWeights("int8", quanta, scales, None, 1, size)
    offsets = matrix.offsets[:, :num_groups].contiguous()
    # They came from fp16.
    return PackedWeights("int4", packed_nibbles(quanta), scales.half(), offsets.half(), 1, size)
