"""The steps that take the most memory, of all that an engine may plan. No torch here."""

from __future__ import annotations

from serving.contracts.ids import RequestId
from serving.contracts.messages import SequenceKey
from serving.contracts.sampling import MAX_LOGPROBS, SamplingParams
from serving.engine.plan import MOST_SAMPLED_ROWS, PlannedChunk, StepPlan

_CONTEXT_TOKENS = 1024
"""Where decoding sequences stand, but one."""
_LONG_CONTEXT_TOKENS = 16_384
"""Where that one stands: far enough for attention to split its context into as many parts as any, for which there is
memory in every row then."""
_EVERYTHING = SamplingParams(
    max_tokens=_CONTEXT_TOKENS,
    seed=1,
    temperature=1.0,
    top_p=0.9,
    top_k=50,
    min_p=0.01,
    min_tokens=_CONTEXT_TOKENS,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    logit_bias=((0, 1.0),),
    num_logprobs=MAX_LOGPROBS,
)
"""All that a row may ask of the sampler at once, but for a grammar: that makes no tensor of its own."""
_EMBEDDED = SamplingParams(max_tokens=0, seed=0, embeds=True)


def largest_steps(*, max_step_tokens: int, max_model_len: int, block_size: int) -> tuple[StepPlan, StepPlan]:
    """A step of `max_step_tokens` tokens of prompts whose hidden states are wanted, and one of as many that decode as a
    step may choose tokens for, filled up with prompts.

    All blocks are block 0, so that any KV cache does: what is computed means nothing, and takes as much memory as if it
    did. What prompts' log probabilities take is little beside it (`MOST_READ_TOKENS`).
    """
    prompts = _prompts(max_step_tokens, max_model_len=max_model_len, block_size=block_size)
    num_decodes = min(max_step_tokens, MOST_SAMPLED_ROWS)
    others = _decodes(range(1, num_decodes), length=min(max_model_len, _CONTEXT_TOKENS), block_size=block_size)
    decodes = _decodes(range(1), length=min(max_model_len, _LONG_CONTEXT_TOKENS), block_size=block_size) + others
    num_left = max_step_tokens - num_decodes
    beside = _prompts(num_left, max_model_len=max_model_len, block_size=block_size)
    return (
        StepPlan(1, prompts, num_prefill_tokens=max_step_tokens, num_decode_tokens=0),
        StepPlan(2, decodes + beside, num_prefill_tokens=num_left, num_decode_tokens=num_decodes),
    )


def _decodes(indices: range, *, length: int, block_size: int) -> tuple[PlannedChunk, ...]:
    """Sequences with contexts of `length` tokens, of which the last is computed."""
    context, table = [0] * length, [0] * -(-length // block_size)
    return tuple(
        PlannedChunk(
            key=_key(index),
            token_ids=context[-1:],
            start=length - 1,
            block_table=table,
            samples=True,
            sample_index=0,
            params=_EVERYTHING,
            is_prefill=False,
            context=context,
            num_prompt_tokens=length,
        )
        for index in indices
    )


def _prompts(num_tokens: int, *, max_model_len: int, block_size: int) -> tuple[PlannedChunk, ...]:
    """Whole prompts of so many tokens together, each as long as the model takes it."""
    lengths = [min(max_model_len, num_tokens - begin) for begin in range(0, num_tokens, max_model_len)]
    return tuple(
        PlannedChunk(
            key=_key(MOST_SAMPLED_ROWS + index),
            token_ids=[0] * length,
            start=0,
            block_table=[0] * -(-length // block_size),
            samples=False,
            sample_index=0,
            params=_EMBEDDED,
            is_prefill=True,
            context=[0] * length,
            num_prompt_tokens=length,
        )
        for index, length in enumerate(lengths)
    )


def _key(index: int) -> SequenceKey:
    return SequenceKey(RequestId(f"largest-step-{index}"), 0)
