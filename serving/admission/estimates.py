"""What a request is taken to weigh before its prompts are tokenised. Pure functions.

Nobody is refused for good on an estimate: alone it exceeds no bound that the request may keep. What is certain may.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from serving.admission.accounts import Account
from serving.admission.allowance import longest_output
from serving.admission.permits import Weight
from serving.contracts.tunables import Tunables

_TOKEN_QUOTAS = ("tokens_per_minute", "tokens_per_day", "tokens_per_month")


@dataclasses.dataclass(frozen=True, slots=True)
class PromptLength:
    """Tokens of a prompt: how many it surely has, how many it is taken to have, and how many it can have at most."""

    least: int
    expected: int
    most: int

    @classmethod
    def exactly(cls, num_tokens: int) -> PromptLength:
        """Of a prompt that is tokenised."""
        return cls(num_tokens, num_tokens, num_tokens)

    def within(self, num_tokens: int) -> PromptLength:
        """The same, but nowhere more than `num_tokens`."""
        return PromptLength(*(min(length, num_tokens) for length in (self.least, self.expected, self.most)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What is asked for each prompt: `num_choices` answers of at most `max_tokens`; None is what the context of
    `max_model_len` tokens leaves."""

    num_choices: int
    max_tokens: int | None
    max_model_len: int


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """Weights of a request's prompts: those to be let in with, and those below which none of them can be.

    Who is refused finally with `expected` (until tomorrow, say) may fit with `least`: only the tokeniser can tell.
    """

    expected: tuple[Weight, ...]
    least: tuple[Weight, ...]


def estimate(lengths: Sequence[PromptLength], *, answers: Answers, account: Account, bounds: Tunables) -> Estimate:
    """The weights of prompts that are to be let in together, on `account`, into a queue with these `bounds`.

    The expected ones are lowered, each by its part, until together they exceed no bound of the queue and no quota of
    tokens that the least ones keep.
    """
    choices = answers.num_choices
    longest_answer = _longest_answer(answers, account)
    least_queued = [choices * length.least for length in lengths]
    least_charged = [_least_charge(length, answers=answers, longest_answer=longest_answer) for length in lengths]
    queued = [max(choices * length.expected, low) for length, low in zip(lengths, least_queued, strict=True)]
    charged = [
        max(_charge(length.expected, answers=answers, longest_answer=longest_answer), low)
        for length, low in zip(lengths, least_charged, strict=True)
    ]
    queued = _lowered(queued, least_queued, bound=bounds.max_queue_tokens)
    quota = _tightest_quota(account)
    if quota is not None:
        charged = _lowered(charged, least_charged, bound=quota)
    return Estimate(_weights(choices, queued, charged), _weights(choices, least_queued, least_charged))


def weigh(num_tokens: int, *, num_choices: int, max_tokens: int) -> Weight:
    """What a prompt of so many tokens weighs, for each of whose choices an answer of up to `max_tokens` is reserved."""
    return Weight(num_choices, num_choices * num_tokens, num_tokens + num_choices * max_tokens)


def _weights(choices: int, queued: Sequence[int], charged: Sequence[int]) -> tuple[Weight, ...]:
    return tuple([Weight(choices, tokens, amount) for tokens, amount in zip(queued, charged, strict=True)])


def _longest_answer(answers: Answers, account: Account) -> int:
    limits = (answers.max_model_len, answers.max_tokens, longest_output(account))
    return min([limit for limit in limits if limit is not None])


def _charge(num_tokens: int, *, answers: Answers, longest_answer: int) -> int:
    """Tokens of a prompt of that length and of its answers. What exceeds the context is refused by that name once it is
    tokenised, and by no quota before."""
    rest = max(1, answers.max_model_len - num_tokens)
    return num_tokens + answers.num_choices * min(rest, longest_answer)


def _least_charge(length: PromptLength, *, answers: Answers, longest_answer: int) -> int:
    """Where several answers share what the context leaves, a longer prompt is charged less than a short one. Over all
    lengths the charge rises and then falls: it is least at one of the ends."""
    shortest = _charge(length.least, answers=answers, longest_answer=longest_answer)
    if length.most == length.least:
        return shortest
    # What leaves no room for an answer is not served at all.
    longest = min(length.most, answers.max_model_len - 1)
    return min(shortest, _charge(longest, answers=answers, longest_answer=longest_answer))


def _tightest_quota(account: Account) -> int | None:
    bounds = [getattr(charge.quotas, name) for charge in account.charges for name in _TOKEN_QUOTAS]
    return min((bound for bound in bounds if bound is not None), default=None)


def _lowered(amounts: list[int], least: list[int], *, bound: int) -> list[int]:
    """`amounts`, none below its `least`, whose sum is at most `bound` where that can be; each gives of what it has
    above its least in proportion."""
    total, certain = sum(amounts), sum(least)
    if total <= bound:
        return amounts
    kept, spare = max(bound, certain) - certain, total - certain
    lowered, passed, given = [], 0, 0
    for amount, low in zip(amounts, least, strict=True):
        passed += amount - low
        # Rounded over the running sum, so that the parts add up exactly.
        part = kept * passed // spare - given if spare else 0
        given += part
        lowered.append(low + part)
    return lowered
