"""Long prompts beside short ones: which are long, how long they are overtaken, and what they get of a step."""

from __future__ import annotations

from serving.engine.sequence import Sequence, SequenceStatus

PATIENCE_SECONDS = 10.0
"""How long short prompts may take the memory that a waiting long one needs. Many short answers end in that time, which
is worth a long prompt's wait; and who sends a long prompt waits some seconds for its prefill anyway."""

_SHARE = 4
"""Long prompts get at least a fourth of what a step spends on prefill, so that they end under any load of short ones;
the rest goes to short ones first."""


def is_long_prefill(sequence: Sequence, long_tokens: int) -> bool:
    """Whether a sequence in prefill had, when it started, more than `long_tokens` tokens to compute."""
    return sequence.prefill_end - sequence.prefill_start > long_tokens


def gives_way(sequence: Sequence, now: float) -> bool:
    """Whether others may take the memory that this waiting long one lacks: neither preempted nor out of patience."""
    return sequence.status is not SequenceStatus.PREEMPTED and now < sequence.arrival + PATIENCE_SECONDS


def least_share(budget: int, step: int) -> int:
    """Tokens of step number `step` that are the long ones' of a prefill budget: a fourth, on an average over steps."""
    return budget * step // _SHARE - budget * (step - 1) // _SHARE
