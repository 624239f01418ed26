"""Guesses are rows of their own behind the tokens that they follow, and nothing wrong with them is their sequence's."""

from __future__ import annotations

import numpy as np

from serving.contracts.ids import RequestId
from serving.contracts.messages import SequenceKey
from serving.engine.arranging import Arranged, arrange
from serving.engine.plan import PlannedChunk
from tests.engine.core.harness import params


def chunk(
    name: str, token_ids: list[int], draft_ids: list[int], *, start: int = 4, samples: bool = True
) -> PlannedChunk:
    key, context = SequenceKey(RequestId(name), 0), [1] * (start + len(token_ids))
    return PlannedChunk(
        *(key, token_ids, start, [0, 1], samples, 3, params(), not samples, context, 2), draft_ids=draft_ids
    )


def arranged_of(*chunks: PlannedChunk) -> Arranged:
    return arrange(chunks, 50, before=None)


def test_each_draft_has_a_row_and_the_token_after_it_is_chosen() -> None:
    arranged = arranged_of(chunk("a", [7], [8, 9]), chunk("b", [5], [], start=6), chunk("c", [1, 2], [], samples=False))
    assert arranged.batch.token_ids.tolist() == [7, 8, 9, 5, 1, 2]
    assert arranged.batch.positions.tolist() == [4, 5, 6, 6, 4, 5]
    assert arranged.batch.logit_rows.tolist() == [0, 1, 2, 3]
    assert arranged.sampled == [0, 0, 0, 1]
    assert [row.sample_index for row in arranged.choosing] == [3, 4, 5, 3]
    assert [(part.num_tokens, part.start) for part in arranged.batch.chunks] == [(3, 4), (1, 6), (2, 4)]


def test_a_token_that_the_vocabulary_lacks_is_an_error_but_not_as_a_draft() -> None:
    arranged = arranged_of(chunk("a", [7], [99]), chunk("b", [77], [8]))
    assert arranged.errors == {1: "the vocabulary has no token 77"}
    assert arranged.batch.token_ids.tolist() == [7, 0, 0, 8]


def test_tells_rows_of_drafts_from_others() -> None:
    arranged = arranged_of(chunk("a", [7], [8, 9]), chunk("b", [5], []), chunk("c", [6], [7]))
    assert arranged.without_drafts(np.arange(6)).tolist() == [0, 3, 4]
    assert arranged.without_drafts(np.arange(0)).tolist() == []
