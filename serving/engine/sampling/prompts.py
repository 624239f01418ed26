"""Reading prompts: how probable each of their tokens was, by the logits of the position before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from serving.contracts.messages import TokenLogprobs
from serving.engine.plan import PlannedChunk
from serving.engine.sampling.logprobs import ComingLogprobs, begin_logprobs
from serving.engine.sampling.sampler import NOT_FINITE
from serving.engine.transfers import Download, upload


@dataclasses.dataclass(frozen=True, slots=True)
class PromptsRead:
    """What was found of prompts, and what went wrong; each by the chunk's index."""

    logprobs: dict[int, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    errors: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class ComingPrompts:
    """Prompts that the device reads: how many rows each chunk has, by index, and where a download has what is found;
    None where nobody reads."""

    lengths: dict[int, int]
    entries: ComingLogprobs | None = None
    is_finite: int | None = None

    def finish(self, download: Download) -> PromptsRead:
        """What was found, when the download has come."""
        read = PromptsRead()
        if self.entries is None or self.is_finite is None:
            return read
        entries, is_finite = self.entries.finish(download), download.read(self.is_finite)
        first = 0
        for index, length in self.lengths.items():
            rows = slice(first, first + length)
            if is_finite[rows].all():
                read.logprobs[index] = entries[rows]
            else:
                read.errors[index] = NOT_FINITE
            first = rows.stop
        return read


def num_read(chunk: PlannedChunk) -> int:
    """The positions of `chunk`, which reads its prompt, at which a token of the prompt follows: from its first on."""
    return min(chunk.end, chunk.num_prompt_tokens - 1) - chunk.start


def begin_reading(logits: torch.Tensor, chunks: Mapping[int, PlannedChunk], download: Download) -> ComingPrompts:
    """Begin to tell how probable the tokens are that follow the positions read of `chunks`, which all read their
    prompts.

    `logits`, fp32 `[num_rows, vocab_size]`, has these positions' rows, one chunk's after another's. A chunk with a row
    that is not finite will be named in `errors`.
    """
    lengths = {index: num_read(chunk) for index, chunk in chunks.items()}
    if not chunks:
        return ComingPrompts(lengths)
    vocab_size = logits.shape[-1]
    token_ids: list[int] = []
    num_top: list[int] = []
    for index, chunk in chunks.items():
        following = chunk.context[chunk.start + 1 : chunk.start + 1 + lengths[index]]
        # One outside the vocabulary is told of where it is computed itself.
        token_ids += [token_id if 0 <= token_id < vocab_size else 0 for token_id in following]
        num_top += [chunk.params.num_prompt_logprobs or 0] * len(following)
    (ids,) = upload(np.asarray(token_ids, dtype=np.int64), device=logits.device)
    entries = begin_logprobs(logits, ids, num_top, download)
    return ComingPrompts(lengths, entries, download.add(logits.isfinite().all(dim=-1)))
