"""A step on its way through a device, and what it turns out to be."""

from __future__ import annotations

import dataclasses

from serving.engine.arranging import Arranged
from serving.engine.embedding import ComingEmbeddings
from serving.engine.phases import Phases
from serving.engine.plan import StepResult
from serving.engine.sampling.prompts import ComingPrompts
from serving.engine.sampling.sampler import NOT_FINITE, Sampled, Sampling
from serving.engine.speculation.acceptance import count_kept
from serving.engine.transfers import Download


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedStep:
    """What was begun of a step, and the download that has all of it; `is_unsound` is the place of the rows' flags."""

    arranged: Arranged
    sampling: Sampling
    prompts: ComingPrompts
    embeddings: ComingEmbeddings
    is_unsound: int
    linear_seconds: float
    attention_seconds: float
    download: Download
    phases: Phases

    def collect(self) -> StepResult:
        """As `Launched.collect`."""
        self.download.wait()
        sampled = self.sampling.finish(self.download)
        prompts = self.prompts.finish(self.download)
        embedded = self.embeddings.finish(self.download)
        arranged = self.arranged
        kept, errors = _keep(arranged, sampled)
        errors |= prompts.errors | embedded.errors
        unsound_rows = arranged.without_drafts(self.download.read(self.is_unsound).nonzero()[0])
        errors |= dict.fromkeys(arranged.chunks_of(unsound_rows), NOT_FINITE) | arranged.errors
        return StepResult(
            [() if index in errors else [sampled.token_ids[row] for row in rows] for index, rows in enumerate(kept)],
            self.phases.times(linear_seconds=self.linear_seconds, attention_seconds=self.attention_seconds),
            errors,
            {
                index: [sampled.logprobs[row] for row in rows]
                for index, rows in enumerate(kept)
                if rows and rows[0] in sampled.logprobs
            },
            prompts.logprobs,
            hidden_sums=embedded.hidden_sums,
            embeddings=embedded.embeddings,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class EmptyStep:
    """A step of no chunks."""

    def collect(self) -> StepResult:
        """As `Launched.collect`."""
        return StepResult(token_ids=())


def _keep(arranged: Arranged, sampled: Sampled) -> tuple[list[range], dict[int, str]]:
    """The sampled rows whose tokens each chunk keeps, and what is wrong with those that keep none, by index.

    Where nothing can be chosen behind a draft, the tokens before are kept, and the next step says what is wrong.
    """
    kept = [range(0)] * len(arranged.batch.chunks)
    errors: dict[int, str] = {}
    row = 0
    while row < len(arranged.sampled):
        index, chunk = arranged.sampled[row], arranged.choosing[row]
        rows = range(row, row + 1 + len(chunk.draft_ids))
        chosen = [None if place in sampled.errors else sampled.token_ids[place] for place in rows]
        count = count_kept(chunk.draft_ids, chosen)
        if count == 0:
            errors[index] = sampled.errors[row]
        kept[index] = rows[:count]
        row = rows.stop
    return kept, errors
