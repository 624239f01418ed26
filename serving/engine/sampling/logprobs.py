"""How probable tokens were: logarithms of probabilities for those who asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from serving.contracts.messages import TokenLogprobs
from serving.contracts.sampling import MAX_LOGPROBS
from serving.engine.sampling.blocks import largest

LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of 0, which JSON cannot say: OpenAI's own choice."""


def logprobs_of(logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Of each row of `logits`, fp32 `[num_rows, vocab_size]`, its token's logarithm of probability (natural, in fp32),
    and the `num_top` most probable tokens; of two equally probable ones, the one of the lower id first.

    As many are looked for in every row, so that no row's depend on what its company asked for.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, torch.tensor(token_ids, device=logits.device)[:, None]).squeeze(-1)
    found, ids = largest(logprobs, min(MAX_LOGPROBS, logprobs.shape[-1]))
    values, places = found.clamp(min=LOWEST_LOGPROB).cpu().numpy(), ids.cpu().numpy()
    order = np.lexsort((places, -values), axis=-1)
    values, places = (np.take_along_axis(array, order, axis=-1) for array in (values, places))
    return [
        TokenLogprobs(logprob, top_ids[:count], top_logprobs[:count])
        for logprob, top_ids, top_logprobs, count in zip(
            chosen.clamp(min=LOWEST_LOGPROB).tolist(), places.tolist(), values.tolist(), num_top, strict=True
        )
    ]
