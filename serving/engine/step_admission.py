"""Admission rules of a step: what can never run, who may join now, who may grow, and how long company is awaited."""

from __future__ import annotations

import math
from collections.abc import Iterable

from serving.contracts.messages import MAX_PRIORITY, RefusalCode, Submit
from serving.contracts.tunables import Tunables
from serving.engine.sequence import Sequence

_ROUNDING = 1e-9
"""A ratio times a count may miss a whole number by the error of floating point."""


def refusal_of(submit: Submit, *, max_context_tokens: int) -> tuple[RefusalCode, str] | None:
    """Why `submit` could never run to its end, as code and message; None where it can."""
    num_prompt = len(submit.prompt_ids)
    if num_prompt == 0:
        return "invalid_value", "the prompt must have at least one token"
    if submit.params.embeds and submit.generated_ids:
        return "invalid_value", "a prompt's embedding has no generated tokens"
    if abs(submit.priority) > MAX_PRIORITY:
        return "invalid_value", f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, not {submit.priority}"
    if not (math.isfinite(submit.weight) and submit.weight > 0):
        return "invalid_value", f"weight must be a positive number, not {submit.weight}"
    timeout = submit.timeout_seconds
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        return "invalid_value", f"timeout_seconds must be a positive number, not {timeout}"
    requested = num_prompt + submit.params.max_tokens
    if requested > max_context_tokens:
        return (
            "context_length_exceeded",
            f"the context limit is {max_context_tokens} tokens; the prompt has {num_prompt} and "
            f"{submit.params.max_tokens} more were asked for, {requested} in all",
        )
    return None


def num_blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` positions."""
    return -(-num_tokens // block_size)


class KvLimits:
    """Owns the line that the use of KV blocks may not cross; used by the engine's thread only.

    Lowering `kv_limit_ratio` under what is in use drains: the line follows the use downwards, so nothing joins and
    growth must be paid for by a preemption, but nobody is thrown out for the change itself. A sequence that runs alone
    may take the whole pool, so that whatever was let in can end.
    """

    def __init__(self, num_blocks: int, tunables: Tunables) -> None:
        self._num_blocks = num_blocks
        self.retune(tunables)
        self._line = self._usable

    def retune(self, tunables: Tunables) -> None:
        """Follow new tunables from the next step."""
        self._usable = max(1, int(self._num_blocks * tunables.kv_limit_ratio + _ROUNDING))
        self._watermark = math.ceil(self._usable * tunables.kv_watermark_ratio - _ROUNDING)

    def settle(self, *, num_used: int) -> None:
        """Draw the line for a step that begins with `num_used` blocks in use."""
        self._line = max(self._usable, min(self._line, num_used))

    def room(self, *, num_used: int, alone: bool) -> int:
        """Blocks that a sequence which joins may take, `alone` where nothing runs; never negative."""
        if alone:
            return self._num_blocks - num_used
        return max(0, self._usable - self._watermark - num_used)

    def room_to_grow(self, *, num_used: int, alone: bool) -> int:
        """Blocks that those that run may take over any number of steps, `alone` where one runs; none while use
        drains down to a lowered line."""
        return max(0, (self._num_blocks if alone else self._usable) - num_used)

    def may_grow(self, count: int, *, num_used: int, alone: bool) -> bool:
        """Whether a running sequence may take `count` blocks more, `alone` where no other runs."""
        return num_used + count <= (self._num_blocks if alone else self._line)


def window_ends_at(oldest: Sequence, tunables: Tunables) -> float:
    """When the oldest unstarted sequence stops waiting for company, in seconds of the scheduler's clock."""
    return oldest.arrival + tunables.batch_window_ms / 1000


def wait_ends_at(unstarted: Sequence, tunables: Tunables) -> float:
    """When a sequence has waited too long of whose request nothing has begun, in seconds of the scheduler's clock.

    Where a choice or an earlier attempt has begun there is no such moment: half an answer has been given already.
    """
    return min(unstarted.arrival + tunables.max_queue_wait_ms / 1000, unstarted.deadline)


def overdue_message(overdue: Sequence, tunables: Tunables) -> str:
    """Which of the two bounds a sequence has exceeded that waited too long."""
    max_wait_seconds = tunables.max_queue_wait_ms / 1000
    own_seconds = overdue.deadline - overdue.arrival
    if own_seconds < max_wait_seconds:
        return f"waited longer than its own timeout ({own_seconds:g} s) for a place"
    return f"waited longer than max_queue_wait_ms ({tunables.max_queue_wait_ms:g} ms) for a place"


def is_company_complete(
    needs: Iterable[tuple[int, int]], tunables: Tunables, *, num_running: int, room_blocks: int
) -> bool:
    """Whether more company could not join anyway: the waiting fill the free places, the token budget or the memory.

    `needs` are the tokens to compute and the blocks to take of each that waits; `room_blocks` is what those that join
    may take together. Looks at no more of them than there are places.
    """
    num_places = tunables.max_running - num_running
    num_tokens = max(1, tunables.max_batch_tokens - num_running)
    for tokens, blocks in needs:
        num_places -= 1
        num_tokens -= min(tokens, tunables.max_prefill_chunk)
        room_blocks -= blocks
        if num_places <= 0 or num_tokens <= 0 or room_blocks <= 0:
            return True
    return False
