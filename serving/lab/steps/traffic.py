"""Whether traffic is still what a workload was measured from. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from serving.lab.steps.evidence import Traffic
from serving.lab.workloads.distributions import Lengths
from serving.lab.workloads.drawing import share_above
from serving.lab.workloads.workload import RequestClass

LEAST_REQUESTS: Final = 30
"""Fewer say too little."""
LEAST_DISTANCE: Final = 0.1
"""A smaller difference is not worth a new measurement, however sure it is."""
_BY_CHANCE: Final = 1.36
"""Over the root of the number of requests: the distance that chance exceeds once in 20 times (Smirnov 1948, "Table for
Estimating the Goodness of Fit of Empirical Distributions")."""


def hold_against(
    classes: Sequence[RequestClass], *, prompts: Sequence[int], answers: Sequence[int], num_requests: int
) -> Traffic:
    """Lengths in tokens of prompts and of complete answers, against those of a workload's classes in their shares.
    What there is less than 30 of is not compared. The bound is what differs by more than chance, and by a tenth."""
    fewest = min((len(each) for each in (prompts, answers) if len(each) >= LEAST_REQUESTS), default=LEAST_REQUESTS)
    return Traffic(
        num_requests=num_requests,
        prompts=_distance(prompts, [(each.share, each.prompt_tokens) for each in classes]),
        answers=_distance(answers, [(each.share, each.output_tokens) for each in classes]),
        bound=max(LEAST_DISTANCE, _BY_CHANCE / math.sqrt(fewest)),
    )


def _distance(lengths: Sequence[int], mixture: Sequence[tuple[float, Lengths]]) -> float | None:
    """The largest difference between the share of lengths up to one of them and the mixture's (Kolmogorov 1933), over
    all that occur; just below each of them too, as the mixture's share may jump there."""
    if len(lengths) < LEAST_REQUESTS:
        return None
    found, counts = np.unique(np.maximum(np.array(lengths, dtype=np.int64), 1), return_counts=True)
    measured = np.cumsum(counts) / len(lengths)
    before = np.concatenate(([0.0], measured[:-1]))
    described = np.array([_share_up_to(int(length), mixture) for length in found])
    just_below = np.array([_share_up_to(int(length) - 1, mixture) for length in found])
    return float(max(np.abs(described - measured).max(), np.abs(just_below - before).max()))


def _share_up_to(length: int, mixture: Sequence[tuple[float, Lengths]]) -> float:
    total = sum(share for share, _ in mixture)
    return 1 - sum(share * share_above(lengths, length) for share, lengths in mixture) / total
