"""A decoder's weights as quantisation leaves them, for who computes without the kernels."""

from __future__ import annotations

import dataclasses

import torch

from serving.engine.kernels.quantised import WeightFormat, rounded_weights, vocabulary_format
from serving.engine.models.loader import DecoderWeights


def as_if_quantised(weights: DecoderWeights, weight_format: WeightFormat) -> DecoderWeights:
    """What `weights` become when they are quantised, rounded to their own dtype."""
    if weight_format == "bfloat16":
        return weights

    def rounded(weight: torch.Tensor, kept_as: WeightFormat) -> torch.Tensor:
        return rounded_weights(weight, kept_as)[:, : weight.shape[1]].to(weight.dtype)

    layers = [
        dataclasses.replace(
            layer,
            qkv=rounded(layer.qkv, weight_format),
            output=rounded(layer.output, weight_format),
            gate_up=rounded(layer.gate_up, weight_format),
            down=rounded(layer.down, weight_format),
        )
        for layer in weights.layers
    ]
    vocabulary = rounded(weights.vocabulary, vocabulary_format(weight_format))
    return dataclasses.replace(weights, layers=tuple(layers), vocabulary=vocabulary)
