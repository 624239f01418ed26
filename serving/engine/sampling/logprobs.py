"""How probable tokens were: logarithms of probabilities for those who asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from serving.contracts.messages import TokenLogprobs
from serving.contracts.sampling import MAX_LOGPROBS
from serving.engine.sampling.blocks import largest
from serving.engine.transfers import Download

LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of 0, which JSON cannot say: OpenAI's own choice."""


@dataclasses.dataclass(frozen=True, slots=True)
class ComingLogprobs:
    """Where a download has what `begin_logprobs` computed, and how many tokens each row asked for."""

    chosen: int
    values: int
    token_ids: int
    num_top: Sequence[int]

    def finish(self, download: Download) -> list[TokenLogprobs]:
        """The rows' entries, when the download has come."""
        values, places = download.read(self.values), download.read(self.token_ids)
        order = np.lexsort((places, -values), axis=-1)
        values, places = (np.take_along_axis(array, order, axis=-1) for array in (values, places))
        return [
            TokenLogprobs(logprob, top_ids[:count], top_logprobs[:count])
            for logprob, top_ids, top_logprobs, count in zip(
                download.read(self.chosen).tolist(), places.tolist(), values.tolist(), self.num_top, strict=True
            )
        ]


def begin_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int], download: Download
) -> ComingLogprobs:
    """Of each row of `logits`, fp32 `[num_rows, vocab_size]`, its token's logarithm of probability (natural, in fp32),
    and the `num_top` most probable tokens; of two equally probable ones, the one of the lower id first. `token_ids`
    `[num_rows]` are on the logits' device.

    As many are looked for in every row, so that no row's depend on what its company asked for.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, token_ids[:, None]).squeeze(-1)
    found, places = largest(logprobs, min(MAX_LOGPROBS, logprobs.shape[-1]))
    return ComingLogprobs(
        download.add(chosen.clamp_(min=LOWEST_LOGPROB)),
        download.add(found.clamp(min=LOWEST_LOGPROB)),
        download.add(places),
        num_top,
    )
