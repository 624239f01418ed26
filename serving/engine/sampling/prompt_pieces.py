"""Prompts whose tokens' probabilities are wanted, cut into pieces: each position comes with numbers for a whole
vocabulary, so that a long chunk read at once would take hundreds of megabytes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from serving.engine.plan import PlannedChunk

PIECE_TOKENS = 64


def is_read(chunk: PlannedChunk) -> bool:
    """Whether probabilities of the prompt are to be read from `chunk`. Where a token was generated, they were."""
    return chunk.params.num_prompt_logprobs is not None and chunk.sample_index == 0 and _num_read(chunk) > 0


def pieces_of(chunk: PlannedChunk) -> Iterator[PlannedChunk]:
    """The positions of `chunk` at which a token of the prompt follows, in pieces that sample nothing."""
    for first in range(0, _num_read(chunk), PIECE_TOKENS):
        last = min(first + PIECE_TOKENS, _num_read(chunk))
        yield msgspec.structs.replace(
            chunk, token_ids=chunk.token_ids[first:last], start=chunk.start + first, samples=False
        )


def rest_of(chunk: PlannedChunk) -> PlannedChunk:
    """What of `chunk` its pieces leave to compute; its last token anyway, since a plan's chunks have at least one."""
    num_done = min(_num_read(chunk), len(chunk.token_ids) - 1)
    return msgspec.structs.replace(chunk, token_ids=chunk.token_ids[num_done:], start=chunk.start + num_done)


def _num_read(chunk: PlannedChunk) -> int:
    return max(0, min(chunk.end, chunk.num_prompt_tokens - 1) - chunk.start)
