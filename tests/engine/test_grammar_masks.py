"""The sampler and grammars: what is admitted, whom it concerns, and what it costs when a grammar fails."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from serving.contracts.sampling import Grammar, SamplingParams
from serving.engine.plan import PlannedChunk
from serving.engine.sampling import grammars
from serving.engine.sampling.sampler import Sampler
from tests.engine.driving import sampling_chunk

_VOCABULARY = 70
_EOS = 3
_MIXTURE: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"top_p": 0.9},
    {"top_k": 3},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.5, "temperature": 1.3},
    {"logit_bias": ((5, 50.0), (60, -50.0))},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
    {"min_tokens": 10, "stop_token_ids": (5, 6)},
)


@dataclasses.dataclass
class _Scripted:
    """The grammar's text lists what each next token may be; a token beyond the list, or not in it, is a problem."""

    steps: list[list[int]]
    read: list[int] = dataclasses.field(default_factory=list)

    def advance(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            if token_id not in self.steps[len(self.read)]:
                raise ValueError(f"token {token_id} is not admitted")
            self.read.append(token_id)

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        bits = np.zeros(len(row) * 32, dtype=np.uint8)
        bits[self.steps[len(self.read)]] = 1
        row[:] = np.packbits(bits, bitorder="little").view(np.int32)


@dataclasses.dataclass
class _Provider:
    compiled: list[_Scripted] = dataclasses.field(default_factory=list)

    def compile(self, grammar: Grammar) -> _Scripted:
        if grammar.text == "fails":
            raise ValueError("it makes no sense")
        self.compiled.append(_Scripted(msgspec.json.decode(grammar.text, type=list[list[int]])))
        return self.compiled[-1]


def _sampler(provider: _Provider | None = None) -> Sampler:
    return Sampler(frozenset({_EOS}), masks=provider or _Provider())


def _row(
    steps: Sequence[Sequence[int]] | str | None = None, *, generated: Sequence[int] = (), name: str = "a", **params: Any
) -> PlannedChunk:
    text = steps if isinstance(steps, str) else msgspec.json.encode(steps).decode()
    grammar = None if steps is None else Grammar("regex", text)
    full = {"max_tokens": 100, "seed": 1, **params}
    return sampling_chunk(SamplingParams(**full, grammar=grammar), generated=generated, name=name)


def _logits(num_rows: int, *, seed: int = 0, vocab_size: int = _VOCABULARY) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("params", _MIXTURE, ids=str)
def test_only_what_is_admitted_is_chosen_however_it_is_sampled(params: dict[str, Any]) -> None:
    admitted = [0, 7, 31, 32, 64, 69]
    for seed in range(40):
        sampled = _sampler().sample(_logits(1, seed=seed), [_row([admitted], **{**params, "seed": seed})])
        assert sampled.errors == {}
        assert sampled.token_ids[0] in admitted


@pytest.mark.parametrize("vocab_size", [_VOCABULARY, 64, 4096, 4099])
def test_masks_take_effect_alike_with_numpy_and_with_torch(monkeypatch: pytest.MonkeyPatch, vocab_size: int) -> None:
    chance = np.random.default_rng(3)
    bits = chance.integers(0, 2, size=(3, vocab_size), dtype=np.uint8)
    padded = np.pad(bits, ((0, 0), (0, -vocab_size % 32)))
    masks = np.packbits(padded, axis=-1, bitorder="little").view(np.int32)
    logits, rows = _logits(5, vocab_size=vocab_size), [4, 0, 2]
    expected = logits.clone()
    expected[torch.tensor(rows)] = expected[rows].masked_fill(torch.from_numpy(bits) == 0, -torch.inf)
    for on_cpu in (True, False):
        monkeypatch.setattr(grammars, "is_on_cpu", lambda _, answer=on_cpu: answer)
        found = logits.clone()
        grammars.forbid(found, rows, masks)
        assert torch.equal(found, expected)


def test_the_choice_among_the_admitted_is_what_it_is_where_nothing_else_is_likely() -> None:
    admitted = [1, 8, 40]
    for seed in range(20):
        logits = _logits(1, seed=seed)
        alone = torch.full_like(logits, -torch.inf)
        alone[:, admitted] = logits[:, admitted]
        restricted = _sampler().sample(logits.clone(), [_row([admitted], seed=seed)])
        assert restricted.token_ids == _sampler().sample(alone, [_row(seed=seed)]).token_ids


@pytest.mark.parametrize("vocab_size", [_VOCABULARY, 4096, 49_153])
def test_a_row_does_not_depend_on_whether_its_company_follows_a_grammar(vocab_size: int) -> None:
    steps = [sorted({0, 5, vocab_size - 1, 33})]
    rows = [
        _row(steps if index % 2 else None, name=str(index), seed=index, **_MIXTURE[index // 2])
        for index in range(2 * len(_MIXTURE))
    ]
    logits = _logits(len(rows), vocab_size=vocab_size)
    together = _sampler().sample(logits.clone(), rows).token_ids
    alone = [_sampler().sample(logits[i : i + 1].clone(), [row]).token_ids[0] for i, row in enumerate(rows)]
    assert together == alone
    plain = [index for index in range(len(rows)) if index % 2 == 0]
    without = _sampler().sample(logits[plain].clone(), [rows[index] for index in plain]).token_ids
    assert without == [together[index] for index in plain]


def test_log_probabilities_are_those_before_the_grammar() -> None:
    logits = _logits(1)
    sampled = _sampler().sample(logits.clone(), [_row([[9]], num_logprobs=3)])
    expected = torch.log_softmax(logits, dim=-1)[0]
    assert sampled.logprobs[0].logprob == pytest.approx(float(expected[9]))
    assert sampled.logprobs[0].top_ids == expected.topk(3).indices.tolist()


def test_the_text_is_read_on_and_compiled_once() -> None:
    provider = _Provider()
    sampler = _sampler(provider)
    row = _row([[4], [5], [6]])
    generated: list[int] = []
    for _ in range(3):
        context = row.context
        (token_id,) = sampler.sample(_logits(1), [row]).token_ids
        generated.append(token_id)
        assert isinstance(context, list)
        context.append(token_id)
        row = msgspec.structs.replace(row, sample_index=len(generated))
    assert generated == [4, 5, 6]
    assert len(provider.compiled) == 1
    assert provider.compiled[0].read == [4, 5]


def test_another_attempt_is_read_from_the_tokens_that_it_brings() -> None:
    provider = _Provider()
    sampler = _sampler(provider)
    steps = [[4], [5, 15], [6]]
    sampler.sample(_logits(1), [_row(steps, generated=[4, 15])])
    assert sampler.sample(_logits(1), [_row(steps, generated=[4])]).token_ids[0] in (5, 15)
    assert [matcher.read for matcher in provider.compiled] == [[4, 15], [4]]


def test_choices_of_one_request_have_a_text_each() -> None:
    provider = _Provider()
    rows = [_row([[4, 5], [6]], generated=generated) for generated in ([4], [5])]
    rows = [msgspec.structs.replace(row, key=msgspec.structs.replace(row.key, choice=i)) for i, row in enumerate(rows)]
    assert _sampler(provider).sample(_logits(2), rows).token_ids == [6, 6]
    assert [matcher.read for matcher in provider.compiled] == [[4], [5]]


def test_what_was_not_used_for_long_is_forgotten_and_made_anew() -> None:
    provider = _Provider()
    sampler = _sampler(provider)
    ended, going_on = _row([[4]], name="ended"), _row([[5]], name="going on")
    sampler.sample(_logits(2), [ended, going_on])
    for _ in range(70):
        sampler.sample(_logits(1), [going_on])
    assert len(sampler._grammars) == 1
    for _ in range(70):  # and where nobody follows one any more
        sampler.sample(_logits(1), [_row(name="plain")])
    assert len(sampler._grammars) == 0
    assert sampler.sample(_logits(1), [ended]).token_ids == [4]
    assert len(provider.compiled) == 3


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (_row("fails", name="b"), "it makes no sense"),
        (_row([[4], [5]], generated=[9], name="b"), "token 9 is not admitted"),
    ],
)
def test_a_grammar_that_fails_ends_its_own_row_alone(row: PlannedChunk, reason: str) -> None:
    logits = _logits(3)
    company = [_row(name="a"), _row([[4, 5]], name="c")]
    sampled = _sampler().sample(logits.clone(), [company[0], row, company[1]])
    assert sampled.errors == {1: f"the grammar cannot be followed: {reason}"}
    alone = [
        _sampler().sample(logits[i : i + 1].clone(), [one]).token_ids[0]
        for i, one in ((0, company[0]), (2, company[1]))
    ]
    assert [sampled.token_ids[0], sampled.token_ids[2]] == alone


def test_without_a_provider_a_grammar_is_an_error_and_plain_rows_are_not() -> None:
    sampled = Sampler(frozenset({_EOS})).sample(_logits(2), [_row([[4]], name="a"), _row(name="b")])
    assert sampled.errors == {0: "the grammar cannot be followed: this engine knows no grammars"}


def test_where_nothing_is_admitted_no_token_is_left() -> None:
    sampled = _sampler().sample(_logits(2), [_row([[]], name="a"), _row(name="b")])
    assert sampled.errors == {0: "no token is left to choose"}


@pytest.mark.parametrize(
    ("admitted", "expected"),
    [([_EOS], _EOS), ([_EOS, 8], 8), ([5, 8], 8), ([5], 5)],
    ids=["complete", "may end", "stop token or more", "stop token alone"],
)
def test_min_tokens_gives_way_where_the_grammar_admits_nothing_else(admitted: list[int], expected: int) -> None:
    logits = torch.zeros(2, _VOCABULARY)
    logits[:, [_EOS, 5]] = 9.0
    rows = [_row([admitted], min_tokens=10, stop_token_ids=(5,)), _row(min_tokens=10, temperature=0.0, name="plain")]
    sampled = _sampler().sample(logits, rows)
    assert sampled.errors == {}
    assert sampled.token_ids[0] == expected
    assert sampled.token_ids[1] not in (_EOS,)


def test_a_bias_lifts_nothing_that_the_grammar_forbids() -> None:
    biases = tuple((token_id, 100.0) for token_id in range(10))
    assert _sampler().sample(_logits(1), [_row([[60]], logit_bias=biases)]).token_ids == [60]


def test_what_the_model_deems_impossible_may_be_all_that_is_admitted() -> None:
    logits = _logits(1)
    logits[0, 9] = -1e4
    sampled = _sampler().sample(logits, [_row([[9]])])
    assert (sampled.token_ids, sampled.errors) == ([9], {})
    assert math.isfinite(float(logits[0, 9]))


@pytest.mark.parametrize("vocab_size", [_VOCABULARY, 1003])
def test_an_accelerators_way_to_forbid_is_the_processors(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(2)
    masks = chance.integers(-(2**31), 2**31, size=(3, -(-vocab_size // 32))).astype(np.int32)
    logits = _logits(5, vocab_size=vocab_size)
    expected = logits.clone()
    grammars.forbid(expected, [0, 2, 4], masks)
    assert torch.isinf(expected).any(dim=-1).tolist() == [True, False, True, False, True]
    monkeypatch.setattr(grammars, "is_on_cpu", lambda _: False)
    grammars.forbid(logits, [0, 2, 4], masks)
    assert torch.equal(logits, expected)
