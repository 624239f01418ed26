"""Reading prompts: how probable each of their tokens was, by the logits of the position before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from serving.contracts.messages import TokenLogprobs
from serving.engine.plan import PlannedChunk
from serving.engine.sampling.logprobs import logprobs_of
from serving.engine.sampling.sampler import NOT_FINITE


@dataclasses.dataclass(frozen=True, slots=True)
class PromptsRead:
    """What was found of prompts, and what went wrong; each by the chunk's index."""

    logprobs: dict[int, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    errors: dict[int, str] = dataclasses.field(default_factory=dict)


def num_read(chunk: PlannedChunk) -> int:
    """The positions of `chunk`, which reads its prompt, at which a token of the prompt follows: from its first on."""
    return min(chunk.end, chunk.num_prompt_tokens - 1) - chunk.start


def read_prompts(logits: torch.Tensor, chunks: Mapping[int, PlannedChunk]) -> PromptsRead:
    """How probable the tokens are that follow the positions read of `chunks`, which all read their prompts.

    `logits`, fp32 `[num_rows, vocab_size]`, has these positions' rows, one chunk's after another's. A chunk with a row
    that is not finite is named in `errors`.
    """
    read = PromptsRead()
    if not chunks:
        return read
    vocab_size = logits.shape[-1]
    token_ids: list[int] = []
    num_top: list[int] = []
    for chunk in chunks.values():
        following = chunk.context[chunk.start + 1 : chunk.start + 1 + num_read(chunk)]
        # One outside the vocabulary is told of where it is computed itself.
        token_ids += [token_id if 0 <= token_id < vocab_size else 0 for token_id in following]
        num_top += [chunk.params.num_prompt_logprobs or 0] * len(following)
    entries = logprobs_of(logits, token_ids, num_top)
    is_finite = logits.isfinite().all(dim=-1).tolist()
    first = 0
    for index, chunk in chunks.items():
        rows = slice(first, first + num_read(chunk))
        if all(is_finite[rows]):
            read.logprobs[index] = entries[rows]
        else:
            read.errors[index] = NOT_FINITE
        first = rows.stop
    return read
