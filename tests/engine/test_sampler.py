"""Sampling: filters, draws, bans, errors, and independence of a row's company."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.contracts.sampling import SamplingParams
from serving.engine.plan import PlannedChunk
from serving.engine.sampling import filters, sampler, thresholds
from serving.engine.sampling.sampler import Sampler
from tests.engine.driving import sampling_chunk

pytestmark = pytest.mark.heavy

_EOS = 3


def _row(index: int = 0, *, seed: int = 0, choice: int = 0, **params: Any) -> PlannedChunk:
    chunk = sampling_chunk(SamplingParams(**{"max_tokens": 100, "seed": seed, **params}), choice=choice)
    return msgspec.structs.replace(chunk, sample_index=index)


def _logits(num_rows: int, vocab_size: int, *, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def _sample(logits: torch.Tensor, rows: list[PlannedChunk]) -> list[int]:
    sampled = Sampler(frozenset({_EOS})).sample(logits.clone(), rows)
    assert sampled.errors == {}
    return sampled.token_ids


def _draws(logits: torch.Tensor, count: int, **params: Any) -> list[int]:
    """`count` draws from one row of logits, at `count` positions."""
    return _sample(logits.expand(count, -1), [_row(index, **params) for index in range(count)])


def _kept(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """Plainly: which tokens the filters leave (temperature → top_k → top_p → min_p, ties kept)."""
    chances = np.exp((logits.double().numpy() - float(logits.max())) / params.temperature)
    order = np.argsort(-chances, kind="stable")
    kept = order[: params.top_k] if 0 < params.top_k < len(order) else order
    sums = np.cumsum(chances[kept])
    if params.top_p < 1.0:
        kept = kept[: int(np.searchsorted(sums, params.top_p * sums[-1])) + 1]
    kept = kept[chances[kept] >= params.min_p * chances.max()]
    return set(kept.tolist())


_params = st.builds(
    lambda temperature, top_k, top_p, min_p: {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    },
    st.floats(0.2, 2.0),
    st.integers(0, 40),
    st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
    st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
)


@settings(deadline=None)
@given(params=_params, seed=st.integers(0, 1000))
def test_draws_come_from_what_the_filters_leave(params: dict[str, Any], seed: int) -> None:
    logits = _logits(1, 30, seed=seed)[0]
    kept = _kept(logits, SamplingParams(max_tokens=1, seed=0, **params))
    # A mass that falls on a bound by a rounding may keep one token more or less: a wider and a narrower bound decide.
    slack = {**params, "top_p": min(1.0, params["top_p"] + 1e-5), "min_p": max(0.0, params["min_p"] - 1e-5)}
    widest = _kept(logits, SamplingParams(max_tokens=1, seed=0, **slack)) | kept
    assert set(_draws(logits, 64, **params)) <= widest


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 6, "top_p": 0.9, "min_p": 0.05}],
)
def test_draws_are_distributed_as_asked(params: dict[str, Any]) -> None:
    logits = _logits(1, 20, seed=11, spread=1.5)[0]
    settings_ = SamplingParams(max_tokens=1, seed=0, **params)
    kept = sorted(_kept(logits, settings_))
    chances = torch.softmax(logits[kept].double() / settings_.temperature, dim=-1).numpy()
    count = 20_000
    found = np.bincount(_draws(logits, count, **params), minlength=20)[kept]
    assert found.sum() == count
    chi_square = float(((found - count * chances) ** 2 / (count * chances)).sum())
    assert chi_square < len(kept) + 6 * math.sqrt(2 * len(kept))


_MIXTURE: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"top_p": 0.9},
    {"top_p": 0.9999, "temperature": 2.0},
    {"top_k": 3},
    {"top_k": 700, "temperature": 2.0},
    {"min_p": 0.02},
    {"top_k": 50, "top_p": 0.5, "min_p": 0.01, "temperature": 1.3},
    {"min_tokens": 10, "stop_token_ids": (5, 6)},
    {"temperature": 1e-9},
)


@pytest.mark.parametrize("vocab_size", [997, 49_152])
def test_a_row_does_not_depend_on_its_company(vocab_size: int) -> None:
    count = 3 * len(_MIXTURE)
    logits = _logits(count, vocab_size, spread=2.0)
    rows = [_row(index, seed=index, choice=index % 3, **_MIXTURE[index % len(_MIXTURE)]) for index in range(count)]
    together = _sample(logits, rows)
    alone = [_sample(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    backwards = _sample(logits.flip(0), rows[::-1])[::-1]
    assert together == alone == backwards


def test_ties_do_not_depend_on_company() -> None:
    """Equal logits have no order of their own: whatever the batch looks for beside them must not give them one."""
    logits = _logits(1, 2000).round().expand(8, -1)
    rows = [_row(index, seed=index, top_k=40, top_p=0.95) for index in range(7)]
    wide = _row(7, seed=7, top_k=900)
    assert _sample(logits, [*rows, wide])[:7] == [_sample(logits[:1], [row])[0] for row in rows]


def test_the_same_seed_choice_and_position_draw_the_same() -> None:
    logits = _logits(1, 500).expand(2, -1)
    assert len(set(_sample(logits, [_row(4, seed=8), _row(4, seed=8)]))) == 1
    varied = [_row(index, seed=seed, choice=choice) for index in range(4) for seed in (1, 2) for choice in (0, 1)]
    assert len(set(_sample(logits[:1].expand(len(varied), -1), varied))) > 4


def test_a_full_sort_finds_the_same_nucleus_as_the_candidates() -> None:
    """A flat distribution's nucleus is wider than the candidates; a peaked one's is not. Both are as asked."""
    flat, peaked = torch.zeros(1, 5000), torch.zeros(1, 5000)
    flat[0] -= torch.arange(5000) * 1e-4
    peaked[0, 17] = 20.0
    assert set(_draws(peaked[0], 50, top_p=0.9)) == {17}
    kept = _kept(flat[0], SamplingParams(max_tokens=1, seed=0, top_p=0.5))
    found = set(_draws(flat[0], 1000, top_p=0.5))
    assert 2000 < len(kept) < 2500
    assert max(found) <= max(kept) + 1
    assert max(found) > 0.95 * max(kept)


@pytest.mark.parametrize("vocab_size", [40, 1023, 9000, 49_152, 49_153])
def test_every_way_to_find_thresholds_finds_the_same(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, buckets and bounds save sorting on a CPU; elsewhere whole rows are sorted. A row flat enough to need all
    of its tokens is among them."""
    mixture = [
        *[{"top_k": top_k} for top_k in (2, 40, 1025, 5000, 9000)],
        *[
            {"top_p": top_p, "temperature": temperature}
            for top_p in (0.3, 0.9, 0.999)
            for temperature in (0.5, 1.0, 2.0)
        ],
        *[{"top_k": top_k, "top_p": 0.8} for top_k in (3, 300, 3000, 30_000)],
        {"min_p": 0.01},
        {},
    ]
    rows = [_row(index, seed=index, **mixture[index % len(mixture)]) for index in range(4 * len(mixture))]
    logits = _logits(len(rows), vocab_size, spread=1.5)
    found = _sample(logits, rows)
    for module in (filters, thresholds, sampler):
        monkeypatch.setattr(module, "is_on_cpu", lambda _: False)
    assert _sample(logits, rows) == found


@pytest.mark.parametrize("vocab_size", [5000, 49_152])
def test_a_wide_nucleus_is_the_fewest_tokens_that_reach_the_share(vocab_size: int) -> None:
    weights = torch.rand(6, vocab_size, generator=torch.Generator().manual_seed(3)) ** 0.1
    weights[:, 7] = 1.0
    totals, top_p = weights.double().sum(dim=-1), torch.tensor([0.9, 0.95, 0.99, 0.999, 0.5, 1e-9], dtype=torch.float64)
    lowest = thresholds.thresholds_of(weights, totals, torch.full((6,), vocab_size), top_p)
    for row, total, share, threshold in zip(weights, totals, top_p, lowest, strict=True):
        kept = row[row >= threshold]
        assert kept.double().sum() >= total * share * (1 - 1e-12)
        assert (kept[kept > threshold]).double().sum() < total * share


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}])
def test_greedy_takes_the_most_probable_token(params: dict[str, Any]) -> None:
    logits = _logits(6, 300)
    chosen = _sample(logits, [_row(index, **params) for index in range(6)])
    assert chosen == logits.argmax(dim=-1).tolist()


def test_top_k_above_the_vocabulary_is_off() -> None:
    logits = _logits(1, 50, spread=0.1)[0]
    assert _draws(logits, 40, top_k=51) == _draws(logits, 40) == _draws(logits, 40, top_k=2**31 - 1)


def test_the_smallest_top_p_keeps_one_token() -> None:
    logits = _logits(1, 50, spread=0.1)[0]
    assert set(_draws(logits, 40, top_p=1e-12)) == {int(logits.argmax())}


def test_the_smallest_temperature_neither_overflows_nor_strays() -> None:
    logits = _logits(1, 50)[0] * 1e4
    assert set(_draws(logits, 40, temperature=5e-324)) == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ends_are_banned_until_min_tokens(temperature: float) -> None:
    logits = torch.zeros(4, 10)
    logits[:, [_EOS, 5]] = 50.0
    params = {"temperature": temperature, "min_tokens": 2, "stop_token_ids": (5, 99)}
    chosen = _sample(logits, [_row(index, **params) for index in range(4)])
    assert not {_EOS, 5} & set(chosen[:2])
    assert set(chosen[2:]) <= {_EOS, 5}


def test_an_ignored_eos_is_not_banned() -> None:
    logits = torch.zeros(1, 10)
    logits[0, _EOS] = 50.0
    assert _sample(logits, [_row(temperature=0.0, min_tokens=2, ignore_eos=True)]) == [_EOS]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_p": 0.9}, {}])
def test_a_row_that_is_not_finite_is_reported_and_the_others_go_on(bad: float, params: dict[str, Any]) -> None:
    logits = _logits(5, 400)
    rows = [_row(index, seed=index, **params) for index in range(5)]
    expected = _sample(logits, rows)
    logits[2, 7] = bad
    sampled = Sampler(frozenset()).sample(logits, rows)
    assert list(sampled.errors) == [2]
    assert "not finite" in sampled.errors[2]
    assert [token for index, token in enumerate(sampled.token_ids) if index != 2] == expected[:2] + expected[3:]


def test_a_row_without_any_token_left_is_reported() -> None:
    rows = [_row(temperature=0.0, min_tokens=1, stop_token_ids=(0, 1, 2)), _row(temperature=0.0)]
    sampled = Sampler(frozenset({_EOS})).sample(torch.zeros(2, 4), rows)
    assert sampled.errors == {0: "no token is left to choose"}


def test_nothing_to_sample_is_nothing() -> None:
    assert Sampler(frozenset()).sample(torch.empty(0, 10), []).token_ids == []
