"""Penalties and bias: what they do to a row, row by row as a plain reference does, whoever shares the batch."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from serving.contracts.sampling import SamplingParams
from serving.engine.plan import PlannedChunk
from serving.engine.sampling import penalties
from serving.engine.sampling.sampler import Sampler
from tests.engine.driving import sampling_chunk

pytestmark = pytest.mark.heavy

VOCAB = 40


def _params(**params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 100, "seed": 0, "temperature": 0.0, **params})


def _penalised(row: torch.Tensor, chunk: PlannedChunk) -> torch.Tensor:
    """Plainly, token by token: repetition, frequency and presence, bias, ban."""
    params = chunk.params
    counts = Counter(chunk.context[chunk.num_prompt_tokens :])
    changed = row.clone()
    for token_id in set(chunk.context) if params.repetition_penalty != 1.0 else ():
        value = float(changed[token_id])
        changed[token_id] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token_id, count in counts.items():
        changed[token_id] -= count * params.frequency_penalty + params.presence_penalty
    for token_id, bias in params.logit_bias:
        changed[token_id] += bias
    if chunk.sample_index < params.min_tokens:
        changed[list(params.stop_token_ids)] = -math.inf
    return changed


def _logits_after(logits: torch.Tensor, chunks: Sequence[PlannedChunk]) -> torch.Tensor:
    """What sampling makes of `logits`."""
    changed = logits.clone()
    Sampler(frozenset()).sample(changed, chunks)
    return changed


_tokens = st.lists(st.integers(0, VOCAB - 1), max_size=12)
_penalties = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.floats(-2.0, 2.0),
        "frequency_penalty": st.floats(-2.0, 2.0),
        "repetition_penalty": st.floats(0.1, 4.0),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100.0, 100.0), max_size=4).map(
            lambda biases: tuple(biases.items())
        ),
        "stop_token_ids": st.just((3, 7)),
        "min_tokens": st.integers(0, 8),
    },
)
_rows = st.lists(st.tuples(_penalties, st.lists(st.integers(0, VOCAB - 1), min_size=1), _tokens), max_size=6)


@settings(deadline=None)
@given(rows=_rows, seed=st.integers(0, 1000))
def test_a_mixed_batch_is_penalised_as_a_plain_reference_does_row_by_row(rows: list[Any], seed: int) -> None:
    chunks = [
        sampling_chunk(_params(**params), prompt=prompt, generated=generated, name=str(index))
        for index, (params, prompt, generated) in enumerate(rows)
    ]
    logits = torch.randn(len(chunks), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    expected = [_penalised(row, chunk) for row, chunk in zip(logits, chunks, strict=True)]
    for found, wanted in zip(_logits_after(logits, chunks), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    chunk = sampling_chunk(_params(repetition_penalty=penalty), prompt=[1, 2, 2, 3], generated=[4, 4, 5])
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([list(chunk.context)]), logits.clone())
    torch.testing.assert_close(_logits_after(logits, [chunk]), expected)


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        ({"temperature": 1.6, "top_k": 12, "top_p": 0.7}, [TopKLogitsWarper(12), TopPLogitsWarper(0.7)]),
        ({"temperature": 1.4, "top_k": 20, "min_p": 0.05}, [TopKLogitsWarper(20), MinPLogitsWarper(0.05)]),
    ],
)
def test_filters_keep_what_those_of_transformers_keep(params: dict[str, Any], warpers: list[Any]) -> None:
    count = 4000
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    temperature = TemperatureLogitsWarper(params.get("temperature", 1.0))
    warped = LogitsProcessorList([temperature, *warpers])(torch.tensor([[1]]), logits.clone())
    kept = set(warped.isfinite().nonzero()[:, 1].tolist())
    chunks = [
        sampling_chunk(_params(**{"temperature": 1.0, **params, "seed": seed}), name=str(seed)) for seed in range(count)
    ]
    drawn = Sampler(frozenset()).sample(logits.expand(count, -1).clone(), chunks).token_ids
    chances = torch.softmax(warped[0].double(), dim=-1)
    likely = {token_id for token_id in kept if chances[token_id] > 0.005}
    assert likely <= set(drawn) <= kept


@pytest.mark.parametrize("filters", [{}, {"top_k": 9}, {"top_p": 0.7}, {"min_p": 0.05, "temperature": 1.5}])
def test_draws_are_distributed_as_penalties_bias_and_filters_together_ask(filters: dict[str, Any]) -> None:
    """Pearson's chi-square of the draws against the exact distribution."""
    count, vocab_size = 8000, 16
    params = {
        "temperature": 1.0,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.3,
        "logit_bias": ((2, 1.5), (11, -100.0)),
        **filters,
    }
    chunks = [
        sampling_chunk(_params(**params, seed=seed), prompt=[1, 2, 3], generated=[4, 4, 5], name=str(seed))
        for seed in range(count)
    ]
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(8))
    settings_ = chunks[0].params
    changed = (_penalised(logits[0], chunks[0]).double() / settings_.temperature).softmax(dim=-1)
    ordered, ids = changed.sort(descending=True)
    num_kept = settings_.top_k or vocab_size
    if settings_.top_p < 1.0:
        num_kept = int((ordered.cumsum(dim=-1) < settings_.top_p).sum()) + 1
    kept = [int(id_) for id_ in ids[:num_kept] if changed[id_] >= settings_.min_p * ordered[0]]
    kept = [id_ for id_ in kept if changed[id_] * count > 5]
    drawn = Sampler(frozenset()).sample(logits.expand(count, -1).clone(), chunks).token_ids
    found = torch.bincount(torch.tensor(drawn), minlength=vocab_size)[kept].double()
    expected = changed[kept] / changed[kept].sum() * found.sum()
    assert count - found.sum() <= count * 0.01
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert chi_square < len(kept) + 6 * math.sqrt(2 * len(kept))


def test_the_prompt_counts_for_repetition_alone() -> None:
    prompt = [5] * 50
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3))
    chunks = [
        sampling_chunk(_params(presence_penalty=2.0, frequency_penalty=2.0), prompt=prompt, name="a"),
        sampling_chunk(_params(repetition_penalty=2.0), prompt=prompt, name="b"),
    ]
    changed = _logits_after(logits, chunks)
    assert torch.equal(changed[0], logits[0])
    assert (changed[1] != logits[1]).nonzero().tolist() == [[5]]


@pytest.mark.parametrize("order", [1, -1])
def test_a_penalty_depends_on_no_neighbour_and_on_no_order(order: int) -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(4))
    plain = sampling_chunk(_params(), generated=[1, 2, 3, 4], name="a")
    penalised = sampling_chunk(_params(frequency_penalty=1.05), generated=list(range(20)) * 3, name="b")
    alone = [_logits_after(logits[index : index + 1], [chunk]) for index, chunk in enumerate((plain, penalised))]
    together = _logits_after(logits[::order] if order > 0 else logits.flip(0), [plain, penalised][::order])
    together = together if order > 0 else together.flip(0)
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together[0], logits[0])


def test_counts_go_on_with_the_sequence_and_start_anew_with_another_attempt() -> None:
    """One sampler over a sequence's life: its list grows, it pauses, and its key comes again with another list."""
    sampler = Sampler(frozenset())
    params = _params(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.2)
    generator = torch.Generator().manual_seed(5)

    def check(context: list[int], *companions: PlannedChunk) -> None:
        chunk = sampling_chunk(params, prompt=context[:3], name="a")
        # The sequence's own list, as the scheduler hands it out.
        own = type(chunk)(
            chunk.key, context[-1:], len(context) - 1, [], True, len(context) - 3, params, False, context, 3
        )
        logits = torch.randn(1 + len(companions), VOCAB, generator=generator)
        expected = _penalised(logits[0], own)
        sampler.sample(logits, [own, *companions])
        torch.testing.assert_close(logits[0], expected)

    first = [1, 2, 3]
    for token_id in (4, 4, 5, 1, 4):
        check(first)
        first.append(token_id)
    company = sampling_chunk(params, prompt=[9], generated=[8, 8], name="b")
    check(first, company)
    sampler.sample(torch.zeros(1, VOCAB), [company])
    first += [6, 6]
    check(first, company)
    check([1, 2, 3, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7])
    check([1, 2, 3, 7])


def test_those_who_take_turns_are_not_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their contexts nor their lists: reading a thousand biases, or a long context, outlasts a step."""
    books: list[Any] = []
    lists: list[SamplingParams] = []
    make_book, read_lists = penalties._Book, Sampler._read_lists

    def making_book(*args: Any, **options: Any) -> Any:
        books.append(make_book(*args, **options))
        return books[-1]

    def reading_lists(sampler: Sampler, params: SamplingParams, **options: Any) -> Any:
        lists.append(params)
        return read_lists(sampler, params, **options)

    monkeypatch.setattr(penalties, "_Book", making_book)
    monkeypatch.setattr(Sampler, "_read_lists", reading_lists)
    sampler = Sampler(frozenset({2}))
    groups = [
        [
            sampling_chunk(
                _params(
                    repetition_penalty=1.1 + group, logit_bias=((group, 2.0), (9, -1.0)), min_tokens=group + row, seed=7
                ),
                prompt=[1, 2, 3],
                generated=[4],
                name=f"{group}.{row}",
            )
            for row in range(3)
        ]
        for group in range(4)
    ]
    for turn in range(40):
        chunks = groups[turn % 4][: 1 + turn % 3]
        logits = torch.randn(len(chunks), VOCAB, generator=torch.Generator().manual_seed(turn))
        expected = [_penalised(row, chunk) for row, chunk in zip(logits, chunks, strict=True)]
        for row, chunk in zip(expected, chunks, strict=True):
            if chunk.sample_index < chunk.params.min_tokens:
                row[2] = -math.inf
        sampler.sample(logits, chunks)
        for found, wanted in zip(logits, expected, strict=True):
            torch.testing.assert_close(found, wanted)
    assert len(books) == len(lists) == 12


def test_what_is_known_of_a_sequence_goes_some_time_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    books: list[weakref.ref[Any]] = []

    class Book(penalties._Book):
        __slots__ = ("__weakref__",)

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            books.append(weakref.ref(self))

    monkeypatch.setattr(penalties, "_Book", Book)
    sampler = Sampler(frozenset())
    for index in range(300):
        chunk = sampling_chunk(_params(frequency_penalty=1.0), generated=[3], name=str(index))
        sampler.sample(torch.zeros(1, VOCAB), [chunk])
    assert sum(book() is not None for book in books) <= 65


def test_each_step_goes_by_its_own_batch() -> None:
    """What one batch asked for is forgotten with it, though the next be of the same size."""
    sampler = Sampler(frozenset())
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(9))
    lowest = int(logits[0].argmin())
    biased = [sampling_chunk(_params(logit_bias=((lowest, 100.0),)), name=str(index)) for index in range(2)]
    plain = [sampling_chunk(_params(), name=str(index)) for index in range(2)]
    expected = logits.argmax(dim=-1).tolist()
    assert sampler.sample(logits.clone(), plain).token_ids == expected
    assert sampler.sample(logits.clone(), biased).token_ids == [lowest, lowest]
    assert sampler.sample(logits.clone(), [plain[0], biased[1]]).token_ids == [expected[0], lowest]
    assert sampler.sample(logits.clone(), plain).token_ids == expected


def test_bias_chooses_what_is_left_where_nearly_all_is_banned() -> None:
    biases = tuple((token_id, -100.0) for token_id in range(VOCAB) if token_id not in (17, 23))
    logits = torch.zeros(64, VOCAB)
    chunks = [
        sampling_chunk(_params(temperature=1.0, seed=seed, logit_bias=biases), name=str(seed)) for seed in range(64)
    ]
    sampled = Sampler(frozenset()).sample(logits, chunks)
    assert sampled.errors == {}
    assert set(sampled.token_ids) == {17, 23}


def test_no_bias_lifts_a_ban() -> None:
    chunk = sampling_chunk(_params(logit_bias=((3, 100.0),), stop_token_ids=(3,), min_tokens=1))
    assert Sampler(frozenset()).sample(torch.zeros(1, VOCAB), [chunk]).token_ids != [3]


def test_ids_outside_the_vocabulary_change_nothing() -> None:
    params = _params(repetition_penalty=2.0, frequency_penalty=1.0, logit_bias=((VOCAB, 5.0), (2**31 - 1, 5.0)))
    chunk = sampling_chunk(params, prompt=[VOCAB, -1], generated=[2**40])
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(6))
    assert torch.equal(_logits_after(logits, [chunk]), logits)


def test_what_nobody_asks_for_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greedy batch takes the largest logit, and nothing else of PyTorch's is called."""
    calls: list[str] = []
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(7))
    chunks = [sampling_chunk(_params(), name=str(index)) for index in range(8)]

    class Recording(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    with Recording():
        token_ids = Sampler(frozenset({1})).sample(logits, chunks).token_ids
    assert token_ids == logits.argmax(dim=-1).tolist()
    heavy = {
        "softmax",
        "log_softmax",
        "sort",
        "topk",
        "cumsum",
        "clone",
        "exp",
        "index_put_",
        "where",
        "amax",
        "gather",
    }
    assert heavy.intersection(calls) == {"gather"}
