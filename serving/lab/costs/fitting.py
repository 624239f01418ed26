"""A model of what steps cost, from an engine's own records of them. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from serving.contracts.errors import InvalidValue
from serving.contracts.steps import StepRow
from serving.lab.costs.assuming import TERMS, expected_terms, prior_rows, untold_terms
from serving.lab.costs.model import CostModel, Fit, StepWork
from serving.lab.costs.nonnegative import nonnegative_least_squares

Floats = npt.NDArray[np.float64]

LEAST_STEPS: Final = 200
LEAST_OF_A_KIND: Final = 20
"""Steps with prefill, and steps with decodes alone, of which there must be as many."""
LEAST_SPREAD: Final = 2
"""How many sizes of the decoding batch must have been seen."""

_HELD_BACK = 5
_ROUNDS = 8
_HUBER = 1.345
_MOST_DISTURBED = 2.0
_LONGEST_PAUSE_SECONDS = 0.02


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step, as far as its cost is concerned."""

    seconds: float
    num_prefill_tokens: int
    num_prefill_positions: int
    num_decoding: int
    num_context_tokens: int


def samples_of(rows: Sequence[StepRow]) -> list[Sample]:
    """The steps of one engine that say what they cost: those that failed, were alone in having drafts, or took none of
    the time of those that computed, left out. A step takes until the next begins, where that follows at once: what an
    engine does between two steps is part of what its streams wait for."""
    samples = []
    for row, following in itertools.pairwise([*rows, None]):
        assert row is not None, "only the last is followed by nothing"
        num_decoding = len(row.decoding)
        if row.failed or row.total_ms <= 0 or num_decoding != row.num_decode_tokens:
            continue
        if num_decoding and not row.num_context_tokens:
            continue  # an older engine's, which does not tell it
        samples.append(
            Sample(
                row.total_ms / 1000 + _pause_after(row, following),
                row.num_prefill_tokens,
                row.num_prefill_positions,
                num_decoding,
                row.num_context_tokens,
            )
        )
    return samples


def work_of_sample(sample: Sample) -> StepWork:
    """What the step computed."""
    return StepWork(
        num_prefill_tokens=sample.num_prefill_tokens,
        num_prefill_positions=sample.num_prefill_positions,
        num_decoding=sample.num_decoding,
        num_context_tokens=sample.num_context_tokens,
    )


def fit_cost(samples: Sequence[Sample], *, request_seconds: float) -> CostModel:
    """The model whose relative errors on these steps are least, none of its terms negative; a fifth of the steps is
    held back, and says how well it does. What they tell little of stays near the default model's ratios
    (`serving.lab.costs.assuming`), and the fit names it.

    Outliers, of which a shared machine has many, count less: Huber's weights with his constant (Huber 1981, "Robust
    Statistics", section 7.8), by iterated reweighting. That leaves what a step takes when little disturbs it; but what
    disturbs is part of what streams wait for, and of how much an engine can serve. So all terms are raised, in
    proportion, until they add up to the time that the steps took; one that took more than twice its prediction counts
    as twice, since a machine that stood still is no part of its engine. Raises `InvalidValue`, which says what is
    missing, for steps too few or too much alike to tell the terms apart.
    """
    _check(samples)
    table = np.array([msgspec.structs.astuple(sample) for sample in samples], dtype=np.float64)
    is_held = np.arange(len(table)) % _HELD_BACK == _HELD_BACK - 1
    matrix, seconds = _matrix(table), table[:, 0]
    terms, assumed = _fit(matrix[~is_held], seconds[~is_held])
    terms = terms * _disturbance(matrix[~is_held] @ terms, seconds[~is_held])
    predicted = matrix[is_held] @ terms
    errors = np.abs(predicted / seconds[is_held] - 1)
    fit = Fit(
        num_steps=int((~is_held).sum()),
        num_held_back=int(is_held.sum()),
        median_error=round(float(np.median(errors)), 4),
        p95_error=round(float(np.quantile(errors, 0.95)), 4),
        total_error=round(float(predicted.sum() / seconds[is_held].sum() - 1), 4),
        assumed=assumed,
    )
    named = dict(zip(TERMS, map(float, terms), strict=True))
    return CostModel(**named, request_seconds=request_seconds, source="fitted", fit=fit)


def _pause_after(row: StepRow, following: StepRow | None) -> float:
    if following is None or following.step != row.step + 1 or not row.num_running:
        return 0.0  # where nobody goes on, what follows is a wait for work
    # A beginning is told in whole milliseconds.
    pause = following.unix_seconds - row.unix_seconds - row.total_ms / 1000
    return pause if -0.001 <= pause <= _LONGEST_PAUSE_SECONDS else 0.0


def _matrix(table: Floats) -> Floats:
    return np.column_stack([np.ones(len(table)), table[:, 1], table[:, 2], table[:, 3], table[:, 4]])


def _fit(matrix: Floats, seconds: Floats) -> tuple[Floats, tuple[str, ...]]:
    """The terms, and the names of those of which these steps tell little. By relative errors: each row is divided by
    its duration."""
    relative, ones = matrix / seconds[:, None], np.ones(len(seconds))
    expected = expected_terms(matrix, seconds)
    terms, noise, root = expected, _noise(relative @ expected - 1), ones
    for _ in range(_ROUNDS):
        rows, wanted = prior_rows(expected, noise=noise)
        terms = nonnegative_least_squares(np.vstack([relative * root[:, None], rows]), np.concatenate([root, wanted]))
        errors = relative @ terms - 1
        noise = _noise(errors)
        root = np.sqrt(np.minimum(1.0, _HUBER * noise / np.maximum(np.abs(errors), 1e-12)))
    return terms, untold_terms(relative * root[:, None], expected, noise=noise)


def _noise(errors: Floats) -> float:
    return 1.4826 * float(np.median(np.abs(errors))) + 1e-9


def _disturbance(predicted: Floats, seconds: Floats) -> float:
    """How many times as long as predicted all steps took together."""
    return float(np.minimum(seconds, _MOST_DISTURBED * predicted).sum() / predicted.sum())


def _check(samples: Sequence[Sample]) -> None:
    if len(samples) < LEAST_STEPS:
        raise InvalidValue("steps", f"{len(samples)} recorded", f"at least {LEAST_STEPS}: send the engine some traffic")
    num_prefill = sum(sample.num_prefill_tokens > 0 for sample in samples)
    num_decode = sum(sample.num_prefill_tokens == 0 for sample in samples)
    for what, count in (("with prefill", num_prefill), ("that only decode", num_decode)):
        if count < LEAST_OF_A_KIND:
            raise InvalidValue("steps", f"{count} {what}", f"at least {LEAST_OF_A_KIND} of them")
    sizes = {sample.num_decoding for sample in samples if sample.num_prefill_tokens == 0}
    if len(sizes) < LEAST_SPREAD:
        raise InvalidValue("steps", f"batches of {sizes} alone", f"at least {LEAST_SPREAD} sizes of the decoding batch")
