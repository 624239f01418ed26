"""Embeddings of prompts: the mean of a decoder's last hidden states, as a vector of length 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import torch

from serving.contracts.messages import SequenceKey
from serving.engine.plan import HiddenSum, PlannedChunk
from serving.engine.transfers import Download, upload

NO_DIRECTION = "the model's hidden states have no mean that points anywhere"
"""The error of a prompt whose hidden states are not finite, or add up to zero."""


SumsAt = dict[tuple[SequenceKey, int], HiddenSum]
"""Sums by sequence, and by the position before which its hidden states are summed up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Embedded:
    """What came of chunks, each by its index: an embedding where it is complete, a sum where it goes on, or else what
    is wrong."""

    embeddings: dict[int, bytes] = dataclasses.field(default_factory=dict)
    hidden_sums: dict[int, HiddenSum] = dataclasses.field(default_factory=dict)
    errors: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class ComingEmbeddings:
    """Hidden states that the device adds up: the sums of chunks that go on, by index and by where they end, the indices
    of those that are complete, and where a download has the sums of the latter; None where none is complete."""

    hidden_sums: dict[int, HiddenSum] = dataclasses.field(default_factory=dict)
    sums_at: SumsAt = dataclasses.field(default_factory=dict)
    ended: tuple[int, ...] = ()
    place: int | None = None

    def finish(self, download: Download) -> Embedded:
        """What came of it, when the download has come. An embedding is fp32, little-endian."""
        embedded = Embedded(hidden_sums=self.hidden_sums)
        if self.place is None:
            return embedded
        # The mean is the sum, but for its length, which goes.
        for index, vector in zip(self.ended, download.read(self.place).astype(np.float64), strict=True):
            length = math.sqrt(np.square(vector).sum())
            if math.isfinite(length) and length > 0:
                embedded.embeddings[index] = (vector / length).astype("<f4").tobytes()
            else:
                embedded.errors[index] = NO_DIRECTION
        return embedded


def embed(hidden: torch.Tensor, chunks: Mapping[int, PlannedChunk]) -> Embedded:
    """As `begin_embedding`, and wait for what comes of it."""
    download = Download(hidden.device)
    coming = begin_embedding(hidden, chunks, download)
    download.send()
    download.wait()
    return coming.finish(download)


@torch.inference_mode()
def begin_embedding(
    hidden: torch.Tensor,
    chunks: Mapping[int, PlannedChunk],
    download: Download,
    *,
    before: SumsAt | None = None,
) -> ComingEmbeddings:
    """Add the hidden states of `chunks`, which all embed, to what was summed up of their sequences before: by the step
    before, in `before`, which whoever planned may not know of yet; or else to the sum that a chunk has.

    `hidden`, fp32 `[num_rows, hidden_size]`, has a row for each of their positions, one chunk's after another's. A sum
    takes one position after the other, in fp32: how a prompt is cut into chunks, and who else is there, changes no bit
    of it.
    """
    if not chunks:
        return ComingEmbeddings()
    sums = _sum_up(hidden, chunks, before or {})
    coming = ComingEmbeddings()
    ended: list[int] = []
    for row, (index, chunk) in enumerate(chunks.items()):
        if chunk.ends_embedding:
            ended.append(row)
            continue
        coming.hidden_sums[index] = coming.sums_at[chunk.key, chunk.end] = sums[row]
    if not ended:
        return coming
    (rows,) = upload(np.asarray(ended, dtype=np.int64), device=hidden.device)
    indices = list(chunks)
    return dataclasses.replace(coming, ended=tuple(indices[row] for row in ended), place=download.add(sums[rows]))


def _sum_up(hidden: torch.Tensor, chunks: Mapping[int, PlannedChunk], before: SumsAt) -> torch.Tensor:
    """The sums `[num_chunks, hidden_size]`."""
    parts: list[torch.Tensor] = []
    lengths: list[int] = []
    first = 0
    for chunk in chunks.values():
        assert chunk.hidden_sum is None or chunk.start > 0, f"{chunk.key}: an old sum is left"
        count = len(chunk.token_ids)
        sums = [_sum_before(chunk, before)[None]] if chunk.start > 0 else []
        parts += [*sums, hidden[first : first + count]]
        lengths.append(len(sums) + count)
        first += count
    # On every device this adds row by row, in their order, unlike `sum`.
    (lengths_there,) = upload(np.asarray(lengths, dtype=np.int64), device=hidden.device)
    return torch.segment_reduce(torch.cat(parts), "sum", lengths=lengths_there, axis=0, unsafe=True)


def _sum_before(chunk: PlannedChunk, before: SumsAt) -> torch.Tensor:
    found: torch.Tensor | None = before.get((chunk.key, chunk.start), chunk.hidden_sum)
    assert found is not None, f"{chunk.key}: a sum is missing"
    return found
