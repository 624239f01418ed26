"""What an account's requests may be, one by one: how urgent, how long. Pure functions."""

from __future__ import annotations

from serving.admission.accounts import Account
from serving.contracts.errors import InvalidValue, PromptTooLong
from serving.contracts.messages import MAX_PRIORITY


def check_priority(account: Account, priority: int) -> None:
    """Raise `InvalidValue` for a request more urgent than its tenant's may be."""
    if priority < account.most_urgent:
        raise InvalidValue("priority", priority, f"an integer from {account.most_urgent} to {MAX_PRIORITY}")


def longest_output(account: Account) -> int | None:
    """Tokens that an answer may have; None is no bound."""
    bounds = [charge.quotas.max_output_tokens for charge in account.charges]
    return min((bound for bound in bounds if bound is not None), default=None)


def check_output(account: Account, num_tokens: int, *, field: str) -> None:
    """Raise `InvalidValue` for `field` where it asks for a longer answer than the account may have."""
    bound = longest_output(account)
    if bound is not None and num_tokens > bound:
        raise InvalidValue(field, num_tokens, f"at most {bound}, the quota max_output_tokens")


def check_prompt(account: Account, num_tokens: int) -> None:
    """Raise `PromptTooLong` for a prompt longer than the account's may be."""
    for charge in account.charges:
        bound = charge.quotas.max_prompt_tokens
        if bound is not None and num_tokens > bound:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens, and {charge.whose}'s quota max_prompt_tokens allows {bound}"
            )
