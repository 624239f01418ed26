"""Embeddings of prompts: the mean of a decoder's last hidden states, as a vector of length 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import torch

from serving.engine.plan import HiddenSum, PlannedChunk

NO_DIRECTION = "the model's hidden states have no mean that points anywhere"
"""The error of a prompt whose hidden states are not finite, or add up to zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class Embedded:
    """What came of chunks, each by its index: an embedding where it is complete, a sum where it goes on, or else what
    is wrong."""

    embeddings: dict[int, bytes] = dataclasses.field(default_factory=dict)
    hidden_sums: dict[int, HiddenSum] = dataclasses.field(default_factory=dict)
    errors: dict[int, str] = dataclasses.field(default_factory=dict)


@torch.inference_mode()
def embed(hidden: torch.Tensor, chunks: Mapping[int, PlannedChunk]) -> Embedded:
    """Add the hidden states of `chunks`, which all embed, to what was summed up of their sequences before.

    `hidden`, fp32 `[num_rows, hidden_size]`, has a row for each of their positions, one chunk's after another's. A sum
    takes one position after the other, in fp32: how a prompt is cut into chunks, and who else is there, changes no bit
    of it. The embedding is fp32, little-endian.
    """
    embedded = Embedded()
    if not chunks:
        return embedded
    sums = _sum_up(hidden, chunks)
    ended = [row for row, chunk in enumerate(chunks.values()) if chunk.ends_embedding]
    vectors = dict(zip(ended, sums[ended].cpu().numpy().astype(np.float64), strict=True))
    for row, (index, total) in enumerate(zip(chunks, sums, strict=True)):
        if row not in vectors:
            embedded.hidden_sums[index] = total
            continue
        # The mean is the sum, but for its length, which goes.
        vector = vectors[row]
        length = math.sqrt(np.square(vector).sum())
        if math.isfinite(length) and length > 0:
            embedded.embeddings[index] = (vector / length).astype("<f4").tobytes()
        else:
            embedded.errors[index] = NO_DIRECTION
    return embedded


def _sum_up(hidden: torch.Tensor, chunks: Mapping[int, PlannedChunk]) -> torch.Tensor:
    """The sums `[num_chunks, hidden_size]`."""
    parts: list[torch.Tensor] = []
    lengths: list[int] = []
    first = 0
    for chunk in chunks.values():
        assert (chunk.hidden_sum is None) == (chunk.start == 0), f"{chunk.key}: a sum is missing, or an old one is left"
        before = [] if chunk.hidden_sum is None else [chunk.hidden_sum[None]]
        count = len(chunk.token_ids)
        parts += [*before, hidden[first : first + count]]
        lengths.append(len(before) + count)
        first += count
    # On every device this adds row by row, in their order, unlike `sum`.
    return torch.segment_reduce(
        torch.cat(parts), "sum", lengths=torch.tensor(lengths, device=hidden.device), axis=0, unsafe=True
    )
