"""What is taken for likely of a model's terms before a step was seen: the default model's ratios. Pure functions.

Terms that always rise together, as tokens and positions of short prompts do, are told apart by chance alone, and one
may come out hundreds of times too large, which whoever predicts a long prompt pays for. So each term is expected near
the default model's, times how much slower this engine is: a ridge towards these values (Hoerl and Kennard 1970, "Ridge
Regression", Technometrics 12; in Bayesian terms a normal prior whose standard deviation is the value itself). What the
steps tell clearly outweighs it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from serving.lab.costs.default import DEFAULT_COST

Floats = npt.NDArray[np.float64]

TERMS: Final = (
    "step_seconds",
    "prefill_token_seconds",
    "prefill_position_seconds",
    "decoding_seconds",
    "context_token_seconds",
)
_DEFAULTS: Final = np.array([getattr(DEFAULT_COST, name) for name in TERMS])
_CORRELATED: Final = 5.0
"""Steps that follow each other are slowed by the same: this squared is how many count as one."""
_TOLD_SHARE: Final = 0.5
_LEAST_NOISE: Final = 1e-4
"""Without one, what is expected would count for nothing where nothing varies."""


def expected_terms(matrix: Floats, seconds: Floats) -> Floats:
    """The default model's terms, times how much slower the steps of this engine are, `[len(TERMS)]`. `matrix` is
    `[num_steps, len(TERMS)]`, `seconds` `[num_steps]`."""
    return _DEFAULTS * float(np.median(seconds / (matrix @ _DEFAULTS)))


def prior_rows(expected: Floats, *, noise: float) -> tuple[Floats, Floats]:
    """Rows that stand beside those of steps, and what they are to come to: `[len(TERMS), len(TERMS)]` and
    `[len(TERMS)]`. `noise` is by how much of itself a step's duration varies."""
    weight = _weight(noise)
    return np.diag(weight / expected), np.full(len(expected), weight)


def untold_terms(relative: Floats, expected: Floats, *, noise: float) -> tuple[str, ...]:
    """The names of the terms of which the steps tell less than the expectation: those whose variance they lessen by
    less than half. `relative` is `[num_steps, len(TERMS)]`, each row divided by its step's duration."""
    weight = _weight(noise)
    told = relative * expected
    variances = np.diag(np.linalg.inv(told.T @ told + weight**2 * np.eye(len(expected))))
    return tuple(name for name, variance in zip(TERMS, variances, strict=True) if weight**2 * variance > _TOLD_SHARE)


def _weight(noise: float) -> float:
    return _CORRELATED * max(noise, _LEAST_NOISE)
