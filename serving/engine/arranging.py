"""A plan's chunks laid out as rows: what the model is to compute, and whose each row is."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from serving.engine.attention.base import AttentionChunk
from serving.engine.models.model import Awaited, Batch
from serving.engine.plan import PlannedChunk
from serving.engine.sampling.prompts import num_read


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """Tokens that a step chose, or is about to: `token_ids` `[len(indices)]`, on the device, and the `indices` of the
    chunks that they belong to, in ascending order."""

    indices: Sequence[int]
    token_ids: torch.Tensor

    def places_of(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Where in `token_ids` the tokens of these chunks are."""
        known = np.asarray(self.indices, dtype=np.int64)
        places = np.searchsorted(known, indices)
        assert len(known) or not len(indices), "a token is awaited of a step that chooses none"
        is_known = known[places.clip(max=len(known) - 1)] == indices
        assert is_known.all(), "a token is awaited of a chunk that chooses none"
        return places


@dataclasses.dataclass(frozen=True, slots=True)
class Arranged:
    """A plan's rows for the model. `sampled`, `reading` and `embedding` are indices of chunks, in their order: the
    logits have first a row for each that samples, and one more for each of its drafts, then those of the positions
    read; the hidden states are all those of the chunks that embed. `choosing` are the chunks of the sampled rows as if
    the drafts before each were its tokens. `errors` says what is wrong with a chunk's tokens, by index."""

    batch: Batch
    first_rows: list[int]
    num_drafts: list[int]
    sampled: list[int]
    choosing: list[PlannedChunk]
    reading: list[int]
    embedding: list[int]
    errors: dict[int, str]

    def chunks_of(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """The chunk that each of `rows` belongs to, by index."""
        found: list[int] = (np.searchsorted(self.first_rows, rows, side="right") - 1).tolist()
        return found

    def without_drafts(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of `rows` that are no draft's: a draft with which something is wrong is but never kept."""
        if not len(rows):
            return rows
        ends = np.asarray([*self.first_rows[1:], len(self.batch.token_ids)]) - self.num_drafts
        return rows[rows < ends[self.chunks_of(rows)]]


def arrange(
    chunks: tuple[PlannedChunk, ...], vocab_size: int, *, before: Chosen | None, long_from: int | None = None
) -> Arranged:
    """Lay the chunks' tokens out as consecutive rows. Tokens outside the vocabulary are computed as token 0; those that
    are awaited are taken from what the step `before` chose. `long_from` is the model's `RopeConfig.long_from`."""
    lengths = [chunk.num_rows for chunk in chunks]
    first_rows = list(itertools.accumulate(lengths[:-1], initial=0))
    parts = [part for chunk in chunks for part in (chunk.token_ids, chunk.draft_ids)]
    token_ids = np.fromiter(itertools.chain.from_iterable(parts), dtype=np.int64)
    firsts = np.asarray([_first_position(chunk, long_from) for chunk in chunks], dtype=np.int64)
    num_drafts = [len(chunk.draft_ids) for chunk in chunks]
    sampled = [index for index, chunk in enumerate(chunks) if chunk.samples for _ in range(1 + num_drafts[index])]
    choosing = [row for chunk in chunks if chunk.samples for row in _behind_drafts(chunk)]
    logit_rows = [
        first_rows[index] + row
        for index, chunk in enumerate(chunks)
        if chunk.samples
        for row in range(len(chunk.token_ids) - 1, lengths[index])
    ]
    reading = [index for index, chunk in enumerate(chunks) if chunk.reads_prompt]
    for index in reading:
        logit_rows += range(first_rows[index], first_rows[index] + num_read(chunks[index]))
    embedding = [index for index, chunk in enumerate(chunks) if chunk.is_prefill and chunk.embeds]
    hidden_rows = [row for index in embedding for row in _rows_of(chunks[index], first_rows[index])]
    batch = Batch(
        token_ids=token_ids,
        positions=np.repeat(firsts - np.asarray(first_rows, dtype=np.int64), lengths) + np.arange(len(token_ids)),
        chunks=[
            AttentionChunk(first_row, length, chunk.start, chunk.block_table, chunk.is_prefill)
            for first_row, length, chunk in zip(first_rows, lengths, chunks, strict=True)
        ],
        logit_rows=np.asarray(logit_rows, dtype=np.int64),
        hidden_rows=np.asarray(hidden_rows, dtype=np.int64),
        awaited=_awaited(chunks, first_rows, before),
    )
    arranged = Arranged(batch, first_rows, num_drafts, sampled, choosing, reading, embedding, errors={})
    unknown = ((token_ids < 0) | (token_ids >= vocab_size)).nonzero()[0]
    asked = arranged.without_drafts(unknown)
    for index, token_id in zip(arranged.chunks_of(asked), token_ids[asked].tolist(), strict=True):
        arranged.errors[index] = f"the vocabulary has no token {token_id}"
    token_ids[unknown] = 0
    return arranged


def _behind_drafts(chunk: PlannedChunk) -> list[PlannedChunk]:
    """The chunk, and once more behind each of its drafts, where the token after that one is chosen."""
    if not chunk.draft_ids:
        return [chunk]
    begin = chunk.sample_index
    places = range(1 + len(chunk.draft_ids))
    return [msgspec.structs.replace(chunk, sample_index=begin + place) for place in places]


def _first_position(chunk: PlannedChunk, long_from: int | None) -> int:
    """The chunk's first position, as a row of the rotary table; those of its others follow."""
    if long_from is None or chunk.most_tokens <= long_from:
        return chunk.start
    return chunk.start + long_from


def _rows_of(chunk: PlannedChunk, first_row: int) -> range:
    return range(first_row, first_row + len(chunk.token_ids))


def _awaited(chunks: Sequence[PlannedChunk], first_rows: Sequence[int], before: Chosen | None) -> Awaited | None:
    awaiting = [(row, chunk.awaits) for row, chunk in zip(first_rows, chunks, strict=True) if chunk.awaits is not None]
    if not awaiting:
        return None
    assert before is not None, "a token is awaited where no step came before"
    rows, indices = zip(*awaiting, strict=True)
    return Awaited(np.asarray(rows, dtype=np.int64), before.token_ids, before.places_of(indices))
