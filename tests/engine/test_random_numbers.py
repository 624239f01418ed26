"""Draws are a function of (seed, choice, position)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.contracts.sampling import MAX_SEED
from serving.engine.random_numbers import split_mix, uniforms

_triples = st.tuples(st.integers(0, MAX_SEED), st.integers(0, 1000), st.integers(0, 2**31))


def test_mixing_is_splitmix64() -> None:
    """The first two outputs from seed 1234567, as published with the reference implementation."""
    golden = 0x9E3779B97F4A7C15
    states = np.asarray([1234567, (1234567 + golden) % 2**64], dtype=np.uint64)
    assert split_mix(states).tolist() == [6457827717110365317, 3203168211198807973]


@given(st.lists(_triples, min_size=1, max_size=20))
def test_each_number_is_the_same_alone(triples: list[tuple[int, int, int]]) -> None:
    together = uniforms(*zip(*triples, strict=True))  # type: ignore[arg-type]
    alone = [uniforms([seed], [choice], [position])[0] for seed, choice, position in triples]
    assert together.tolist() == alone
    assert all(0.0 <= number < 1.0 for number in alone)


def test_numbers_differ_by_seed_choice_and_position() -> None:
    numbers = [
        uniforms([seed], [choice], [position])[0]
        for seed in range(10)
        for choice in range(10)
        for position in range(10)
    ]
    assert len(set(numbers)) == 1000


def test_numbers_are_spread_evenly() -> None:
    numbers = uniforms([9] * 100_000, [0] * 100_000, range(100_000))
    shares, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert abs(shares - 5000).max() < 350  # five standard deviations
    following = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(following) < 0.02
