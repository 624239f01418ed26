"""How a step's token budget is shared between prefill and decode, and what a sequence may take of it."""

from __future__ import annotations

from serving.contracts.tunables import Tunables
from serving.engine.plan import MOST_READ_TOKENS
from serving.engine.sequence import Sequence

_LEAST_SHARE = 16
"""Neither side is left with less than a sixteenth of the budget while it has work: so a long prompt comes to its end
under any load of decodes, and streams go on under any load of prompts."""


def prefill_budget(tunables: Tunables, *, num_decode_tokens: int) -> int:
    """Tokens that prefill may take in a step in which running sequences could decode `num_decode_tokens`.

    What the decodes leave over, or `prefill_share` of the budget where that is more. The decodes get what prefill
    leaves of the whole budget.
    """
    total = tunables.max_batch_tokens
    if num_decode_tokens == 0:
        return total
    least = max(1, total // _LEAST_SHARE)
    wanted = max(total - num_decode_tokens, int(total * tunables.prefill_share), least)
    return min(wanted, total - min(num_decode_tokens, least))


def most_prefill(sequence: Sequence, tunables: Tunables) -> int:
    """Tokens that a sequence in prefill could compute in one step, if it were alone."""
    most = tunables.max_prefill_chunk
    if sequence.reads_prompt:
        most = min(most, MOST_READ_TOKENS)
    return min(sequence.prefill_end - sequence.num_planned_tokens, most)
