"""Estimates: what a request is taken to weigh before its prompts are tokenised refuses nobody for good."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.admission.accounts import Account, Charge
from serving.admission.estimates import Answers, PromptLength, estimate, weigh
from serving.admission.permits import Weight
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables

CONTEXT = 2000
ONE_ANSWER = Answers(num_choices=1, max_tokens=10, max_model_len=CONTEXT)


def unknown(expected: int, *, least: int = 1) -> PromptLength:
    """A text's: what is taken for its tokens may be wrong."""
    return PromptLength(least, expected, CONTEXT - 1)


def account_with(*all_quotas: dict[str, Any]) -> Account:
    return Account(
        charges=tuple(Charge(f"tenant:{number}", Quotas(**quotas)) for number, quotas in enumerate(all_quotas))
    )


def queue_of(tokens: int) -> Tunables:
    return Tunables().changed({"max_queue_tokens": tokens})


def test_what_keeps_its_bounds_weighs_what_it_is_taken_to() -> None:
    found = estimate([unknown(300)], answers=ONE_ANSWER, account=Account(), bounds=Tunables())
    assert found.expected == (Weight(1, 300, 310),)
    assert found.least == (Weight(1, 1, 11),)


@pytest.mark.parametrize("name", ["tokens_per_minute", "tokens_per_day", "tokens_per_month"])
def test_an_estimate_never_exceeds_a_quota_alone(name: str) -> None:
    account = account_with({}, {name: 100, "tokens_per_minute": 100})
    found = estimate([unknown(300)], answers=ONE_ANSWER, account=account, bounds=Tunables())
    assert found.expected == (Weight(1, 300, 100),)


def test_an_estimate_never_exceeds_the_queue_alone() -> None:
    found = estimate([unknown(300)], answers=ONE_ANSWER, account=Account(), bounds=queue_of(200))
    assert found.expected == (Weight(1, 200, 310),)


def test_what_is_certain_is_not_lowered() -> None:
    account = account_with({"tokens_per_minute": 100})
    certain = estimate([PromptLength.exactly(300)], answers=ONE_ANSWER, account=account, bounds=queue_of(200))
    assert certain.expected == certain.least == (Weight(1, 300, 310),)
    at_least = estimate([unknown(600, least=250)], answers=ONE_ANSWER, account=account, bounds=queue_of(200))
    assert at_least.expected == (Weight(1, 250, 260),)


def test_prompts_that_come_together_give_each_its_part() -> None:
    lengths = [unknown(300), unknown(101), PromptLength.exactly(50)]
    found = estimate(lengths, answers=ONE_ANSWER, account=Account(), bounds=queue_of(252))
    assert [weight.tokens for weight in found.expected] == [150, 52, 50]


def test_an_answer_without_a_limit_is_reserved_what_the_context_leaves() -> None:
    answers = Answers(num_choices=3, max_tokens=None, max_model_len=CONTEXT)
    found = estimate([unknown(500)], answers=answers, account=Account(), bounds=Tunables())
    assert found.expected == (Weight(3, 1500, 500 + 3 * 1500),)
    # The longer the prompt, the less is left to each of its answers: the longest is charged least.
    assert found.least == (Weight(3, 3, CONTEXT - 1 + 3),)
    bounded = estimate(
        [unknown(500)], answers=answers, account=account_with({"max_output_tokens": 7}), bounds=Tunables()
    )
    assert bounded.expected == (Weight(3, 1500, 500 + 21),)


def test_without_answers_the_prompt_alone_is_charged() -> None:
    answers = Answers(num_choices=1, max_tokens=0, max_model_len=CONTEXT)
    found = estimate([unknown(500)], answers=answers, account=Account(), bounds=Tunables())
    assert found.expected == (Weight(1, 500, 500),)


def test_what_may_exceed_the_context_is_charged_one_token_of_an_answer() -> None:
    answers = Answers(num_choices=1, max_tokens=None, max_model_len=CONTEXT)
    found = estimate([unknown(CONTEXT)], answers=answers, account=Account(), bounds=Tunables())
    assert found.expected == (Weight(1, CONTEXT, CONTEXT + 1),)


bounds = st.none() | st.integers(1, 3 * CONTEXT)
ranges = st.tuples(st.integers(1, CONTEXT - 1), st.integers(1, CONTEXT), st.integers(1, CONTEXT)).map(
    lambda three: PromptLength(min(three[0], three[2]), max(three[1], min(three[0], three[2])), max(three[0], three[2]))
)


@given(
    lengths=st.lists(ranges, min_size=1, max_size=5),
    num_choices=st.integers(1, 4),
    max_tokens=st.none() | st.integers(0, CONTEXT),
    minute=bounds,
    day=bounds,
    longest=st.none() | st.integers(1, CONTEXT),
    queue=st.integers(1, 3 * CONTEXT),
    data=st.data(),
)
def test_no_bound_is_exceeded_that_a_possible_prompt_keeps(
    lengths: list[PromptLength],
    num_choices: int,
    max_tokens: int | None,
    minute: int | None,
    day: int | None,
    longest: int | None,
    queue: int,
    data: st.DataObject,
) -> None:
    answers = Answers(num_choices=num_choices, max_tokens=max_tokens, max_model_len=CONTEXT)
    account = account_with({"tokens_per_minute": minute, "max_output_tokens": longest}, {"tokens_per_day": day})
    found = estimate(lengths, answers=answers, account=account, bounds=queue_of(queue))
    true = [
        data.draw(st.integers(length.least, max(length.least, min(length.most, CONTEXT - 1)))) for length in lengths
    ]
    limits = [limit for limit in (max_tokens, longest) if limit is not None]
    weights = [
        weigh(tokens, num_choices=num_choices, max_tokens=min([max(1, CONTEXT - tokens), *limits])) for tokens in true
    ]
    queued, charged = sum(w.tokens for w in found.expected), sum(w.charged_tokens for w in found.expected)
    truly_queued, truly_charged = sum(w.tokens for w in weights), sum(w.charged_tokens for w in weights)
    assert queued <= queue or queued <= truly_queued
    for quota in (minute, day):
        assert quota is None or charged <= quota or charged <= truly_charged or truly_charged > quota
    for weight, low in zip(found.expected, found.least, strict=True):
        assert (weight.sequences, low.sequences) == (num_choices, num_choices)
        assert weight.tokens >= low.tokens
        assert weight.charged_tokens >= low.charged_tokens
