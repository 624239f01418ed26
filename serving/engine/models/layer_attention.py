"""How each layer of a model weighs positions, as attention backends take it."""

from __future__ import annotations

from serving.engine.attention.base import LayerAttention
from serving.engine.models.config import ModelConfig


def layer_attention(config: ModelConfig) -> tuple[LayerAttention, ...]:
    """Scale, window and softcap of every layer."""
    scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    return tuple(
        LayerAttention(scale, config.layer(index).window, config.attention_softcap)
        for index in range(config.num_layers)
    )
