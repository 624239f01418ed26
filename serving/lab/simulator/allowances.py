"""What tenants may use, in a simulation: the door's quotas of a minute and of requests at once, with counts in place of
Redis (`serving.admission.quota_scripts`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from serving.contracts.errors import InvalidValue, PromptTooLong, RateLimited
from serving.contracts.quotas import Quotas
from serving.lab.workloads.workload import PlannedRequest

WINDOW_SECONDS: Final = 60.0


class Allowances:
    """Owns what each tenant has used of its own quotas (those of keys have no part here); for one thread. Tenants
    without quotas are counted nowhere."""

    def __init__(self, quotas: Mapping[str, Quotas]) -> None:
        self._books = {tenant: _Book(each) for tenant, each in quotas.items() if not each.is_empty}

    def verdict(self, planned: PlannedRequest, now: float) -> str | None:
        """The code with which the door refuses the request; None where its tenant's quotas have room for it."""
        book = self._books.get(planned.tenant)
        return None if book is None else book.verdict(planned, now)

    def charge(self, planned: PlannedRequest, now: float) -> None:
        """It is let in, and counts with all that it may use at most."""
        if (book := self._books.get(planned.tenant)) is not None:
            book.charge(planned.index, planned.num_prompt_tokens + planned.num_output_tokens, now)

    def settle(self, planned: PlannedRequest, *, used_tokens: int, at_seconds: float) -> None:
        """It ends at that time, and counts from then on with what it used; not at all where that is nothing. Who came
        before, and is judged later, meets it as it was."""
        if (book := self._books.get(planned.tenant)) is not None:
            book.settle(planned.index, used_tokens, at_seconds)


class _Book:
    """Owns one tenant's charges of the last minute and what has ended but was not looked at yet, the oldest first, and
    how many of its requests are open."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._charged_at: deque[tuple[float, int]] = deque()
        self._ended: deque[tuple[float, int, int]] = deque()
        self._amounts: dict[int, int] = {}
        self._tokens = 0
        self._num_open = 0

    def verdict(self, planned: PlannedRequest, now: float) -> str | None:
        quotas, num_prompt, num_output = self._quotas, planned.num_prompt_tokens, planned.num_output_tokens
        if quotas.max_prompt_tokens is not None and num_prompt > quotas.max_prompt_tokens:
            return PromptTooLong.code
        if quotas.max_output_tokens is not None and num_output > quotas.max_output_tokens:
            return InvalidValue.code
        self._note_ends(now)
        self._leave_window(now)
        bounds = (
            (len(self._amounts) + 1, quotas.requests_per_minute),
            (self._tokens + num_prompt + num_output, quotas.tokens_per_minute),
            (self._num_open + 1, quotas.max_concurrent_requests),
        )
        exceeds = any(bound is not None and wanted > bound for wanted, bound in bounds)
        return RateLimited.code if exceeds else None

    def charge(self, index: int, amount: int, now: float) -> None:
        self._charged_at.append((now, index))
        self._amounts[index] = amount
        self._tokens += amount
        self._num_open += 1

    def settle(self, index: int, used_tokens: int, at_seconds: float) -> None:
        self._ended.append((at_seconds, index, used_tokens))

    def _note_ends(self, now: float) -> None:
        while self._ended and self._ended[0][0] <= now:
            _, index, used_tokens = self._ended.popleft()
            self._end(index, used_tokens)

    def _end(self, index: int, used_tokens: int) -> None:
        self._num_open -= 1
        if index not in self._amounts:
            return  # it was charged more than a minute ago
        self._tokens += used_tokens - self._amounts[index]
        if used_tokens:
            self._amounts[index] = used_tokens
        else:
            del self._amounts[index]

    def _leave_window(self, now: float) -> None:
        while self._charged_at and self._charged_at[0][0] <= now - WINDOW_SECONDS:
            _, index = self._charged_at.popleft()
            self._tokens -= self._amounts.pop(index, 0)
