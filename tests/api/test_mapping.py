"""From bodies to what the gateway is asked for: pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api import mapping
from serving.api.compatibility import drop_fields_without_effect
from serving.api.errors import UnsupportedField
from serving.api.schemas import ChatCompletionRequest, CompletionRequest
from serving.contracts.errors import ContextLengthExceeded, InvalidValue
from serving.contracts.sampling import MAX_SEED, SamplingParams


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "Hi", **fields})


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    )


def test_absent_fields_take_the_documented_defaults() -> None:
    params = mapping.sampling_of(completion(), 2, max_context_tokens=100, seed=7)
    assert params == SamplingParams(max_tokens=16, seed=7)
    assert mapping.num_choices_of(completion()) == 1
    assert mapping.stops_of(completion()) == ()


@given(prompt=st.integers(1, 300), limit=st.integers(1, 300), wanted=st.none() | st.integers(1, 300))
def test_what_is_granted_fits_and_is_never_less_than_asked_for(prompt: int, limit: int, wanted: int | None) -> None:
    for request in (completion(max_tokens=wanted), chat(max_tokens=wanted)):
        default = 16 if isinstance(request, CompletionRequest) else max(limit - prompt, 1)
        expected = default if wanted is None else wanted
        if prompt + expected > limit:
            with pytest.raises(ContextLengthExceeded, match=str(limit)):
                mapping.decide_max_tokens(request, num_prompt_tokens=prompt, max_context_tokens=limit)
        else:
            granted = mapping.decide_max_tokens(request, num_prompt_tokens=prompt, max_context_tokens=limit)
            assert granted == expected


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_seed_of_64_bits_is_usable(seed: int) -> None:
    chosen = mapping.choose_seed(completion(seed=seed))
    assert 0 <= chosen <= MAX_SEED
    assert chosen == mapping.choose_seed(completion(seed=seed))
    assert seed < 0 or chosen == seed


def test_newer_name_of_max_tokens_counts_and_may_not_differ() -> None:
    assert mapping.limit_of(chat(max_completion_tokens=5)) == 5
    assert mapping.limit_of(chat(max_completion_tokens=5, max_tokens=5)) == 5
    with pytest.raises(InvalidValue, match="max_completion_tokens"):
        mapping.limit_of(chat(max_completion_tokens=5, max_tokens=6))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_of_every_kind(prompt: Any, expected: list[Any]) -> None:
    assert mapping.prompts_of(completion(prompt=prompt)) == expected


@given(st.text(max_size=2000), st.integers(1, 512))
def test_estimate_stays_within_the_context(prompt: str, limit: int) -> None:
    assert 1 <= mapping.estimate_text_tokens(prompt, max_context_tokens=limit) <= limit


@pytest.mark.parametrize(("value", "neutral"), [(1, True), (1.0, True), (True, False), ("1", False), (0, False)])
def test_neutral_numbers_are_numbers(value: Any, *, neutral: bool) -> None:
    if neutral:
        assert drop_fields_without_effect({"best_of": value, "model": "m"}, supported={"model"}) == {"model": "m"}
    else:
        with pytest.raises(UnsupportedField, match="best_of"):
            drop_fields_without_effect({"best_of": value}, supported=())
