"""Least squares with coefficients that are not negative."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TOLERANCE = 1e-12


def nonnegative_least_squares(matrix: Floats, wanted: Floats) -> Floats:
    """The `x >= 0` that makes |matrix x - wanted| least: `[rows, columns]` and `[rows]` give `[columns]`.

    The active-set method of Lawson and Hanson 1974, "Solving Least Squares Problems", chapter 23, algorithm NNLS.
    """
    num_columns = matrix.shape[1]
    # Columns differ by many orders of magnitude: each is brought to length 1.
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = 1.0
    scaled = matrix / lengths
    found = np.zeros(num_columns)
    is_free = np.zeros(num_columns, dtype=bool)
    for _ in range(3 * num_columns + 1):
        gradient = scaled.T @ (wanted - scaled @ found)
        gradient[is_free] = -np.inf
        if is_free.all() or gradient.max() <= _TOLERANCE * max(1.0, float(np.linalg.norm(wanted))):
            break
        is_free[int(gradient.argmax())] = True
        while True:
            solved = np.zeros(num_columns)
            solved[is_free] = np.linalg.lstsq(scaled[:, is_free], wanted, rcond=None)[0]
            below = is_free & (solved <= 0)
            if not below.any():
                found = solved
                break
            # As far as all stay at or above 0: who reaches it first is bound again.
            places = np.flatnonzero(below)
            shares = found[places] / np.maximum(found[places] - solved[places], 1e-300)
            first = int(shares.argmin())
            found = np.maximum(0.0, found + float(shares[first]) * (solved - found))
            is_free[places[first]] = False
            found[~is_free] = 0.0
    return np.asarray(found / lengths)
