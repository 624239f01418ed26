"""How a step's token budget is shared between prefill and decode, and among decodes."""

from __future__ import annotations

import bisect

from serving.contracts.tunables import Tunables
from serving.engine.sequence import Rank, Sequence

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


def choose_decodes(decoding: list[Sequence], *, budget: int, after: Rank) -> list[Sequence]:
    """Those of `decoding`, which is sorted by rank, that the budget reaches; each takes at least one token.

    Where it does not reach all they take turns, those ranked behind `after` (who was served last) first, and round
    again from the start. Mutates nothing.
    """
    if len(decoding) <= budget:
        return decoding
    begin = bisect.bisect_right(decoding, after, key=_rank)
    return (decoding[begin:] + decoding[:begin])[:budget]


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank
