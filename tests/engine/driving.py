"""A few lines that drive a model runner with hand-made plans: what a scheduler does, without its policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from serving.contracts.ids import RequestId
from serving.contracts.messages import SequenceKey
from serving.contracts.sampling import SamplingParams
from serving.engine.model_runner import ModelRunner
from serving.engine.plan import PlannedChunk, StepPlan


def greedy(max_tokens: int = 64) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)


def small_runner(folder: Path, *, dtype: str = "float32", num_blocks: int = 64, **options: object) -> ModelRunner:
    """A runner of a tiny model: its KV cache has `num_blocks` blocks or a little more."""
    return ModelRunner(folder, kv_cache_bytes=num_blocks * 2 * 4 * 4 * 64 * 16 * 4, dtype=dtype, **options)  # type: ignore[arg-type]


@dataclasses.dataclass(slots=True, eq=False)
class Driven:
    """One sequence on its way: `computed` positions of it are in the cache."""

    name: str
    prompt: list[int]
    params: SamplingParams
    choice: int = 0
    generated: list[int] = dataclasses.field(default_factory=list)
    table: list[int] = dataclasses.field(default_factory=list)
    computed: int = 0
    error: str = ""

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.generated

    @property
    def done(self) -> bool:
        return bool(self.error) or len(self.generated) >= self.params.max_tokens


class Driver:
    """Owns which blocks are free; computes steps of whatever sequences it is given."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        # Handed out from the middle outwards in no particular order: neighbours in a context are none in the cache.
        self._free = [(7 * index + 3) % runner.num_blocks for index in range(runner.num_blocks)]
        if len(set(self._free)) != runner.num_blocks:
            self._free = list(range(runner.num_blocks))
        self._step = 0

    def step(self, sequences: Sequence[Driven], *, max_chunk: int = 1 << 30) -> None:
        """One step of every sequence that is not done: its next chunk, and a token where that is its last."""
        active = [sequence for sequence in sequences if not sequence.done]
        chunks = tuple(self.planned(sequence, max_chunk) for sequence in active)
        num_prefill = sum(len(chunk.token_ids) for chunk in chunks if chunk.is_prefill)
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        self._step += 1
        result = self.runner.run(StepPlan(self._step, chunks, num_prefill, num_tokens - num_prefill))
        for index, (sequence, chunk) in enumerate(zip(active, chunks, strict=True)):
            sequence.computed = chunk.end
            sequence.generated += result.token_ids[index]
            sequence.error = result.errors.get(index, "")

    def finish(self, sequences: Sequence[Driven], *, max_chunk: int = 1 << 30) -> list[list[int]]:
        """Step until all are done, free their blocks, and return what each generated."""
        while any(not sequence.done for sequence in sequences):
            self.step(sequences, max_chunk=max_chunk)
        for sequence in sequences:
            self.preempt(sequence)
        return [sequence.generated for sequence in sequences]

    def preempt(self, sequence: Driven) -> None:
        """Take a sequence's blocks away: all of it will be computed again."""
        self._free += sequence.table
        sequence.table = []
        sequence.computed = 0

    def planned(self, sequence: Driven, max_chunk: int) -> PlannedChunk:
        tokens, start = sequence.tokens, sequence.computed
        end = min(len(tokens), start + max_chunk)
        while len(sequence.table) * self.runner.block_size < end:
            sequence.table.append(self._free.pop())
        return PlannedChunk(
            key=SequenceKey(RequestId(sequence.name), sequence.choice),
            token_ids=tokens[start:end],
            start=start,
            block_table=sequence.table,
            samples=end == len(tokens),
            sample_index=len(sequence.generated),
            params=sequence.params,
            is_prefill=start < len(sequence.prompt),
            context=tokens,
            num_prompt_tokens=len(sequence.prompt),
        )


def driven(prompts: Sequence[list[int]], params: SamplingParams | None = None) -> list[Driven]:
    return [Driven(f"request-{index}", prompt, params or greedy()) for index, prompt in enumerate(prompts)]


def random_prompts(lengths: Sequence[int], *, vocab_size: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def sampling_chunk(
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (1,),
    generated: Sequence[int] = (),
    choice: int = 0,
    name: str = "request",
) -> PlannedChunk:
    """A chunk as the sampler sees one: its last token is computed, and the next is to be chosen."""
    context = [*prompt, *generated]
    return PlannedChunk(
        key=SequenceKey(RequestId(name), choice),
        token_ids=context[-1:],
        start=len(context) - 1,
        block_table=[],
        samples=True,
        sample_index=len(generated),
        params=params,
        is_prefill=not generated,
        context=context,
        num_prompt_tokens=len(prompt),
    )
