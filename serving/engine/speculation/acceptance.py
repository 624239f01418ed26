"""Which guesses are kept."""

from __future__ import annotations

from collections.abc import Sequence as Seq


def count_kept(draft_ids: Seq[int], chosen_ids: Seq[int | None]) -> int:
    """How many of `chosen_ids` are the sequence's next tokens: 1 … `len(draft_ids) + 1`, or 0 where the first is None.

    `chosen_ids[j]` is what is chosen behind the first `j` of `draft_ids`, None where nothing could be chosen. It is
    right where these are what was chosen themselves; so a draft is accepted as far as it equals what is chosen, and
    the first token that differs from it is kept as well. Speculative decoding as of Leviathan et al. 2023 ("Fast
    Inference from Transformers via Speculative Decoding", section 2), with one simplification: a token is a function of
    the context, the seed and its index here, drawn or not, so that there is nothing to correct and the text is exactly
    what it would have been without drafts.
    """
    assert len(chosen_ids) == len(draft_ids) + 1, "a token is chosen behind each draft and one before them"
    for place, chosen_id in enumerate(chosen_ids):
        if chosen_id is None:
            return place
        if place == len(draft_ids) or draft_ids[place] != chosen_id:
            return place + 1
    raise AssertionError("the last place ends it")
