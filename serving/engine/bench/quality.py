"""How far each weight format is from the model in fp32, on a given text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from serving.engine.attention.base import AttentionChunk
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.kv_cache import BLOCK_SIZE
from serving.engine.models.config import read_config
from serving.engine.models.loader import load_weights
from serving.engine.models.making import Backend, make_model
from serving.engine.models.model import Batch, Model

WINDOW_TOKENS = 256
"""Contexts are this long: the text is cut into so many pieces."""
_KV_CACHE_BYTES = 2**30
"""More than a window of any model needs; what is not written takes no memory."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Over all positions: how often the most probable token is that of fp32, and the mean Kullback-Leibler divergence
    from fp32's distribution, in nats."""

    weights: WeightFormat
    backend: str
    num_tokens: int
    top1_agreement: float
    kl_divergence: float


def measure_quality(
    folder: Path,
    token_ids: Sequence[int],
    *,
    weight_formats: Sequence[WeightFormat],
    backend: Backend,
    kernels_folder: Path | None,
) -> Iterator[Quality]:
    """Compare the model of `folder` in each format with itself in fp32 on the text `token_ids`, at least two tokens.

    Raises what `make_model` raises where a format cannot be had on this machine.
    """
    config = read_config(folder)
    windows = [list(token_ids[i : i + WINDOW_TOKENS]) for i in range(0, len(token_ids), WINDOW_TOKENS)]

    def made(dtype: torch.dtype, chosen: Backend, weight_format: WeightFormat) -> Model:
        return make_model(
            config,
            load_weights(folder, config, dtype=dtype, device=torch.device("cpu")),
            kv_cache_bytes=_KV_CACHE_BYTES,
            dtype=dtype,
            device=torch.device("cpu"),
            backend=chosen,
            kernels_folder=kernels_folder,
            weight_format=weight_format,
        )

    exact = made(torch.float32, "torch", "bfloat16")
    expected = [_log_probabilities(exact, window) for window in windows]
    for weight_format in weight_formats:
        model = made(torch.bfloat16, backend, weight_format)
        num_agreed, divergence = 0, 0.0
        for window, wanted in zip(windows, expected, strict=True):
            found = _log_probabilities(model, window)
            num_agreed += int((found.argmax(dim=-1) == wanted.argmax(dim=-1)).sum())
            divergence += float((wanted.exp() * (wanted - found)).sum())
        yield Quality(
            weights=weight_format,
            backend=model.name,
            num_tokens=len(token_ids),
            top1_agreement=round(num_agreed / len(token_ids), 4),
            kl_divergence=round(divergence / len(token_ids), 6),
        )


def _log_probabilities(model: Model, token_ids: Sequence[int]) -> torch.Tensor:
    """Of the token after each position, fp32 `[num_tokens, vocab_size]`."""
    positions = np.arange(len(token_ids))
    blocks = list(range(-(-len(token_ids) // BLOCK_SIZE)))
    batch = Batch(np.asarray(token_ids), positions, [AttentionChunk(0, len(token_ids), 0, blocks)], positions)
    return torch.log_softmax(model.forward(model.prepare(batch)).logits, dim=-1)
