"""What one step computes and what came of it: the seam between scheduler and model runner. No torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import msgspec

from serving.contracts.messages import SequenceKey, TokenLogprobs
from serving.contracts.sampling import SamplingParams

MOST_READ_TOKENS = 64
"""Tokens of a step, at most, in chunks that read their prompt: each comes with numbers for a whole vocabulary, so that
more would take hundreds of megabytes, and keep all streams waiting for as long."""


MOST_SAMPLED_ROWS = 1024
"""Tokens that a step chooses, at most, as many as sequences may run: memory is kept for the numbers of so many."""


HiddenSum = Any
"""The runner's own value: the sum of a sequence's hidden states so far. Its owner keeps it and never looks inside."""


# A Struct, since one is made for each sequence in each step: a frozen dataclass takes fifteen times as long to make.
class PlannedChunk(msgspec.Struct, frozen=True, gc=False):
    """One sequence's part of a step: the tokens at positions `start … start + len(token_ids) - 1`.

    Their keys and values are written to the cache, and each attends to every position up to its own. `block_table`
    covers all of them. With `samples`, the last position's logits choose the next token, whose index among the
    sequence's generated tokens is `sample_index`. `context` is all of its tokens, of which the first
    `num_prompt_tokens` are the prompt; it only ever grows. Both lists are the sequence's own, valid until `update`, or,
    of a plan that is launched, until `launch` returns.

    `hidden_sum` is what the step before made of the hidden states before `start`, for one that `embeds`.

    `draft_ids` are guesses of the tokens after `token_ids`: computed with them, at the positions that follow, and kept
    as far as they are what is chosen there. `awaits` is set where the chunk's only token is not known yet: it is the
    one that chunk number `awaits` of the plan launched before chooses; `token_ids` has a 0 in its place, and `context`
    lacks it.
    """

    key: SequenceKey
    token_ids: Seq[int]
    start: int
    block_table: Seq[int]
    samples: bool
    sample_index: int
    params: SamplingParams
    is_prefill: bool
    context: Seq[int]
    num_prompt_tokens: int
    hidden_sum: HiddenSum | None = None
    draft_ids: Seq[int] = ()
    awaits: int | None = None

    @property
    def end(self) -> int:
        """Position after the last token, drafts not counted: the context's length after the step."""
        return self.start + len(self.token_ids)

    @property
    def num_rows(self) -> int:
        """Tokens that are computed for it, drafts among them."""
        return len(self.token_ids) + len(self.draft_ids)

    @property
    def reads_prompt(self) -> bool:
        """Whether it is to be told how probable the prompt's tokens are. Where a token was generated, it was told."""
        return self.params.num_prompt_logprobs is not None and self.sample_index == 0

    @property
    def most_tokens(self) -> int:
        """How long the context may grow: a bound that never changes."""
        return self.num_prompt_tokens + self.params.max_tokens

    @property
    def embeds(self) -> bool:
        """Whether its hidden states are summed up for an embedding."""
        return self.params.embeds

    @property
    def ends_embedding(self) -> bool:
        """Whether the embedding is complete with it."""
        return self.params.embeds and self.end == len(self.context)


@dataclasses.dataclass(frozen=True, slots=True)
class StepPlan:
    """All that one step computes: decode tokens and prefill chunks together, ragged, nothing padded.

    `num_padded_tokens` is what a rectangular batch would have padded and the `num_idle_slots` that it leaves empty:
    counted in `static` mode, computed never. Drafts are among the decode tokens.
    """

    step: int
    chunks: tuple[PlannedChunk, ...]
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padded_tokens: int = 0
    num_idle_slots: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return self.num_prefill_tokens + self.num_decode_tokens

    def count_positions(self) -> tuple[int, int]:
        """How many positions the rows attend to, each its own and those before it, summed: those of decode, drafts left
        out, and those of prefill."""
        num_decode = num_prefill = 0
        for chunk in self.chunks:
            count = len(chunk.token_ids)
            if chunk.is_prefill:
                num_prefill += count * chunk.start + count * (count + 1) // 2
            else:
                num_decode += chunk.start + count
        return num_decode, num_prefill


@dataclasses.dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's time went, in seconds. Matrix products and attention are parts of the forward pass, 0
    where the backend cannot tell. On a GPU the forward pass and sampling are what the device was busy for, whether or
    not anyone waited; preparation is the host's."""

    prepare_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    linear_seconds: float = 0.0
    attention_seconds: float = 0.0

    def within(self, seconds: float) -> StepTimes:
        """The same for a step of which the host saw `seconds`, all else was hidden behind the step before.

        It was prepared then, and a part of the rest may have been computed then: what is left is shared out alike.
        """
        busy = self.forward_seconds + self.sample_seconds
        share = min(1.0, max(0.0, seconds) / busy) if busy > 0.0 else 1.0
        return StepTimes(
            0.0,
            self.forward_seconds * share,
            self.sample_seconds * share,
            self.linear_seconds * share,
            self.attention_seconds * share,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """`token_ids[i]` are the new tokens of `plan.chunks[i]`: none where it does not sample, otherwise one or more.

    `errors` names chunks that could not be computed, by index, with the reason; they have no tokens, sampling or not.
    The others are not affected.

    `logprobs` has, by index, an entry a token for the chunks that asked; `prompt_logprobs`, by index, an entry for each
    prompt token at positions `start + 1 … end` of the chunks that read their prompt: none for a prompt's last position,
    so that there may be no entry, but a list there is.

    Each chunk that `embeds` has, by index, an entry in `embeddings` where it completes one (see `Finished`), and
    otherwise one in `hidden_sums`, for the plan of its sequence's next chunk.
    """

    token_ids: Seq[Seq[int]]
    times: StepTimes = StepTimes()
    errors: dict[int, str] = dataclasses.field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    hidden_sums: dict[int, HiddenSum] = dataclasses.field(default_factory=dict)
    embeddings: dict[int, bytes] = dataclasses.field(default_factory=dict)


class Runner(Protocol):
    """Computes plans. Owns weights and KV tensors; called by the engine's thread only."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence unless it ignores them."""
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute `plan` and choose the next tokens."""
        ...


@runtime_checkable
class BoundedRunner(Runner, Protocol):
    """A runner that keeps memory for steps of some size, and cannot compute larger ones."""

    @property
    def max_step_tokens(self) -> int | None:
        """Tokens of a step, at most; None: there is no bound."""
        ...


@runtime_checkable
class DividedRunner(Runner, Protocol):
    """A runner whose keys and values depend on whether a sequence may grow long."""

    @property
    def long_from(self) -> int | None:
        """Sequences that may exceed so many tokens (`PlannedChunk.most_tokens`) are computed in another way than those
        that may not: the two share no blocks. None: all are alike."""
        ...


class Launched(Protocol):
    """A plan on its way through a device."""

    def collect(self) -> StepResult:
        """Wait for its result; once. Raises what the computation raises."""
        ...


@runtime_checkable
class AheadRunner(Runner, Protocol):
    """A runner that can be given a plan while it computes another: the device does not wait for who plans."""

    @property
    def looks_ahead(self) -> bool:
        """Whether that gains anything on this device."""
        ...

    def launch(self, plan: StepPlan) -> Launched:
        """Begin to compute `plan`, after those launched before, of which one may not be collected yet. Its chunks may
        await tokens of that one. Collected in the order in which they were launched."""
        ...
