"""`best_of`: more answers are generated than are wanted, and the most probable ones are given."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from serving.api.answers import Answer


def best_answers(answers: Sequence[Answer], *, wanted: int, generated: int, tells_logprobs: bool) -> list[Answer]:
    """Of each `generated` answers, which have one prompt, the `wanted` ones with the highest mean log probability a
    token, the best first; of equals, the earlier one. An answer without tokens comes last.

    Log probabilities that nobody asked for are left out.
    """
    groups = [answers[start : start + generated] for start in range(0, len(answers), generated)]
    best = [answer for group in groups for answer in sorted(group, key=_mean_logprob, reverse=True)[:wanted]]
    return best if tells_logprobs else [dataclasses.replace(answer, logprobs=None) for answer in best]


def _mean_logprob(answer: Answer) -> float:
    known = [entry.logprob for entry in answer.logprobs or () if entry.logprob is not None]
    return statistics.fmean(known) if known else -math.inf
