"""Runners over a cache without a model: what they read back decides the next token, so a wrong block shows as text."""

from __future__ import annotations

import array
import dataclasses
import zlib
from collections import deque
from collections.abc import Callable

import msgspec

from serving.contracts.messages import (
    SequenceKey,
    TokenLogprobs,
)
from serving.contracts.sampling import SamplingParams
from serving.engine.plan import PlannedChunk, StepPlan, StepResult
from serving.engine.speculation.acceptance import count_kept

EOS = 0
Script = Callable[[list[int], PlannedChunk], int]


def next_token(context: list[int], *, seed: int, sample_index: int, vocab_size: int = 40) -> int:
    """The token after `context`: a function of it, the seed and the position, EOS now and then."""
    data = array.array("q", [*context, seed, sample_index]).tobytes()
    return zlib.crc32(data) % vocab_size


class CacheRunner:
    """Owns a cache that holds token ids where a model's would hold keys and values."""

    def __init__(
        self, *, num_blocks: int = 64, block_size: int = 4, max_model_len: int = 4096, vocab_size: int = 40
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset({EOS})
        self.vocab_size = vocab_size
        self.plans: list[StepPlan] = []
        self.before_run: Callable[[StepPlan], None] | None = None
        """Called while the plan is in flight; what it raises is the step's failure."""
        self.before_each_run: Callable[[], None] = lambda: None
        """Called before that, in all tests, to look at what was scheduled."""
        self.failing_keys: set[SequenceKey] = set()
        self.script: Script | None = None
        self._cache: list[int | None] = [None] * (num_blocks * block_size)

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self.before_each_run()
        return self.compute(plan)

    def compute(self, plan: StepPlan) -> StepResult:
        """What comes of a plan whose tokens are all known."""
        if self.before_run is not None:
            self.before_run(plan)
        written: set[int] = set()
        for chunk in plan.chunks:
            token_ids = [*chunk.token_ids, *chunk.draft_ids]
            slots = [self._slot(chunk, chunk.start + place) for place in range(len(token_ids))]
            assert not written.intersection(slots), "two sequences write to one slot"
            written.update(slots)
            for slot, token_id in zip(slots, token_ids, strict=True):
                self._cache[slot] = token_id
        errors = {index: "bad logits" for index, chunk in enumerate(plan.chunks) if chunk.key in self.failing_keys}
        result = StepResult([self._sample(chunk) for chunk in plan.chunks], errors=errors)
        for index, chunk in enumerate(plan.chunks):
            if chunk.params.num_logprobs is not None and chunk.samples:
                result.logprobs[index] = [_told_of(token_id) for token_id in result.token_ids[index]]
            if chunk.reads_prompt:
                read = chunk.context[chunk.start + 1 : min(chunk.end + 1, chunk.num_prompt_tokens)]
                result.prompt_logprobs[index] = [_told_of(token_id) for token_id in read]
            if chunk.embeds:
                total = (chunk.hidden_sum or []) + self._cache_from(chunk, chunk.start)
                if chunk.ends_embedding:
                    result.embeddings[index] = embedding_of(total)
                else:
                    result.hidden_sums[index] = total
        return result

    def _slot(self, chunk: PlannedChunk, position: int) -> int:
        return chunk.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _sample(self, chunk: PlannedChunk) -> list[int]:
        if not chunk.samples:
            return []
        read = self._cache_from(chunk, 0)
        chosen = [
            self._choose(read[: chunk.end + place], chunk, chunk.sample_index + place)
            for place in range(1 + len(chunk.draft_ids))
        ]
        return chosen[: count_kept(chunk.draft_ids, chosen)]

    def _choose(self, read: list[int], chunk: PlannedChunk, sample_index: int) -> int:
        if self.script is not None:
            return self.script(read, chunk)
        return next_token(read, seed=chunk.params.seed, sample_index=sample_index, vocab_size=self.vocab_size)

    def _cache_from(self, chunk: PlannedChunk, start: int) -> list[int]:
        """What lies at `start` and after it, the drafts included."""
        end = chunk.start + chunk.num_rows
        context = [self._cache[self._slot(chunk, position)] for position in range(start, end)]
        read = [token_id for token_id in context if token_id is not None]
        assert len(read) == end - start, "a position was read that nobody wrote"
        return read


class AheadCacheRunner(CacheRunner):
    """A CacheRunner that is given plans ahead, and computes each as late as it may: when it is collected.

    So whatever the engine does to lists, blocks and sequences between the two would show. Owns the plan that was
    collected last, and the tokens that were chosen in it.
    """

    looks_ahead = True

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.num_launched_behind = 0
        """Plans that were launched while another was in flight."""
        self.failing_launches = 0
        """So many of the next launches fail."""
        self._launched: deque[StepPlan] = deque()
        self._chosen: list[list[int]] | None = []
        self._last: StepPlan | None = None

    def run(self, plan: StepPlan) -> StepResult:
        raise AssertionError("a plan was computed at once though the runner looks ahead")

    def launch(self, plan: StepPlan) -> _Launched:
        assert len(self._launched) <= 1, "two plans are in flight already"
        self._check_awaited(plan)
        self.plans.append(plan)
        self.before_each_run()
        if self.failing_launches:
            self.failing_launches -= 1
            raise RuntimeError("scripted failure to launch")
        self.num_launched_behind += bool(self._launched)
        self._launched.append(plan)
        copied = [
            msgspec.structs.replace(chunk, block_table=tuple(chunk.block_table), context=tuple(chunk.context))
            for chunk in plan.chunks
        ]
        return _Launched(self, plan, tuple(copied))

    def collect(self, plan: StepPlan, chunks: tuple[PlannedChunk, ...]) -> StepResult:
        assert self._launched.popleft() is plan, "plans are collected out of order"
        chosen, self._chosen = self._chosen, None
        failed, self._last = self._last, plan
        if chosen is None and failed is not None:
            self._fill_unwritten(plan, chunks, failed)
        known = []
        for chunk in chunks:
            if chunk.awaits is not None:
                # What failed chose nothing, and whoever waits for it is computed in vain.
                tokens = chosen[chunk.awaits] if chosen is not None else []
                chunk = msgspec.structs.replace(chunk, token_ids=tokens[-1:] or [-1])
            known.append(chunk)
        result = self.compute(dataclasses.replace(plan, chunks=tuple(known)))
        self._chosen = [list(token_ids) for token_ids in result.token_ids]
        return result

    def _fill_unwritten(self, plan: StepPlan, chunks: tuple[PlannedChunk, ...], failed: StepPlan) -> None:
        """Behind a step that failed, memory is read that was never written, for those that ended with it alone."""
        for planned, chunk in zip(plan.chunks, chunks, strict=True):
            # A key may have a newer attempt by now: a sequence is known by its list of tokens.
            if not any(planned.context is before.context for before in failed.chunks):
                continue
            for slot in (self._slot(chunk, position) for position in range(chunk.start)):
                self._cache[slot] = -1 if self._cache[slot] is None else self._cache[slot]

    def _check_awaited(self, plan: StepPlan) -> None:
        """Who awaits a token awaits it of a row of the plan in flight that chooses it for that very sequence."""
        awaiting = [chunk for chunk in plan.chunks if chunk.awaits is not None]
        assert self._launched or not awaiting, "a token is awaited though nothing is in flight"
        for chunk in awaiting:
            assert chunk.awaits is not None
            before = self._launched[-1].chunks[chunk.awaits]
            assert before.key == chunk.key
            assert before.samples
            assert chunk.samples
            assert (chunk.token_ids, chunk.start, len(chunk.context)) == ((0,), before.end, before.end)
            assert chunk.sample_index == before.sample_index + 1
            assert chunk.sample_index < chunk.params.max_tokens, "a token is chosen that nobody asked for"
            assert not _is_bound(chunk.params), "the host is to read a token that it does not have"


def _is_bound(params: SamplingParams) -> bool:
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    return params.embeds or params.grammar is not None or penalties != (1.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class _Launched:
    runner: AheadCacheRunner
    plan: StepPlan
    chunks: tuple[PlannedChunk, ...]

    def collect(self) -> StepResult:
        return self.runner.collect(self.plan, self.chunks)


def embedding_of(prompt_ids: list[int]) -> bytes:
    """What stands for the embedding of a prompt of which each token was computed once, in order."""
    return array.array("q", prompt_ids).tobytes()


def _told_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-1.0, [token_id], [-1.0])
