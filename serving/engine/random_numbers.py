"""Random numbers as a function of what they are for, never of a generator's state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def uniforms(
    seeds: Sequence[int] | npt.NDArray[np.uint64], choices: Sequence[int], positions: Sequence[int]
) -> npt.NDArray[np.float64]:
    """One number of [0, 1) for each (seed, choice, position); all three of one length, each value below 2**64.

    The three are hashed one after another with the output function of SplitMix64 (Steele, Lea and Flood 2014, "Fast
    Splittable Pseudorandom Number Generators"; constants of Vigna's `splitmix64.c`), and the upper 53 bits become the
    fraction.
    """
    state = np.asarray(seeds, dtype=np.uint64)
    for values in (choices, positions):
        state = split_mix(state) + np.asarray(values, dtype=np.uint64)
    fractions: npt.NDArray[np.float64] = (split_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def split_mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """What SplitMix64 returns from `state`: the state advanced once and mixed. Wraps at 2**64, as it must."""
    mixed = state + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
