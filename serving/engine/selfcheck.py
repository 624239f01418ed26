"""Whether a device computes what the CPU computes in fp32: attention, the whole decoder, and sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from serving.contracts.ids import RequestId
from serving.contracts.messages import SequenceKey
from serving.contracts.sampling import SamplingParams
from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionChunk
from serving.engine.kv_cache import KVCache, block_bytes
from serving.engine.model_runner import ModelRunner, usable_device
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.layer_attention import layer_attention
from serving.engine.plan import PlannedChunk, StepPlan
from serving.engine.sampling.sampler import Sampler

CheckedBackend = Literal["torch", "triton"]

_CONTEXTS = (1, 15, 16, 17, 255, 256, 257, 700)
"""Lengths about the edges of blocks and of attention's tiles."""
_BLOCKS_A_CONTEXT = 48
_NUM_DECODE_STEPS = 24
_ATTENTION_TOLERANCE = 1e-4
_LONGEST_PROMPT = 300
_GRAPH_ROWS = 8
"""Enough that the prompts' decode steps are replayed, padded."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One comparison: what was compared, whether it agreed, and the figures."""

    name: str
    passed: bool
    detail: str


def check_device(device: str, folder: Path, *, backend: CheckedBackend = "torch") -> tuple[Check, ...]:
    """Compare `device` with the CPU in fp32 on the model of `folder`: attention over paged contexts, greedy tokens of
    prefill and decode in one mixed batch, and sampled tokens from the same logits.

    What `device` computes with, `backend` says, as `make_model` has it; the CPU computes with `torch`. Raises what
    `ModelRunner` raises where the device, the folder or the backend cannot be used at all.
    """
    usable_device(device)
    config = read_config(folder)
    return (
        _check_attention(config, device, backend),
        _check_tokens(config, folder, device, backend),
        _check_sampling(config, device),
    )


def _check_attention(config: ModelConfig, device: str, attention: CheckedBackend) -> Check:
    expected = _attention_outputs(config, "cpu", "torch")
    found = _attention_outputs(config, device, attention)
    difference = max(float((one - other).abs().max()) for one, other in zip(expected, found, strict=True))
    return Check("attention", difference <= _ATTENTION_TOLERANCE, f"largest difference {difference:.2e}")


@torch.inference_mode()
def _attention_outputs(config: ModelConfig, device: str, attention: str) -> list[torch.Tensor]:
    """Outputs of a layer of each kind that the model has, for every context: all but its last row as one chunk, then
    the last rows as one batch."""
    generator = torch.Generator().manual_seed(0)
    kinds = tuple(dict.fromkeys(layer_attention(config)))
    cache = KVCache(
        dataclasses.replace(config, num_layers=len(kinds)),
        num_blocks=_BLOCKS_A_CONTEXT * len(_CONTEXTS),
        dtype=torch.float32,
        device=torch.device(device),
    )
    backend = make_attention(attention, cache, num_heads=config.num_heads, layers=kinds)
    order = torch.randperm(cache.num_blocks, generator=generator).view(len(_CONTEXTS), -1).tolist()

    def attend(chunks: list[AttentionChunk]) -> torch.Tensor:
        num_rows = sum(chunk.num_tokens for chunk in chunks)
        queries, keys, values = (
            torch.randn(num_rows, heads, config.head_dim, generator=generator).to(device)
            for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        )
        batch = backend.prepare(chunks)
        return torch.cat(
            [backend.attend(layer, queries, keys, values, batch=batch).cpu() for layer in range(len(kinds))]
        )

    prefilled = [
        attend([AttentionChunk(0, context, 0, table)]) for context, table in zip(_CONTEXTS, order, strict=True)
    ]
    decoded = attend(
        [
            AttentionChunk(row, 1, context, table)
            for row, (context, table) in enumerate(zip(_CONTEXTS, order, strict=True))
        ]
    )
    return [*prefilled, decoded]


def _check_tokens(config: ModelConfig, folder: Path, device: str, backend: CheckedBackend) -> Check:
    expected = _greedy_tokens(config, folder, "cpu", "torch")
    found = _greedy_tokens(config, folder, device, backend)
    num_equal = sum(one == other for one, other in zip(expected, found, strict=True))
    passed = num_equal == len(expected)
    return Check("greedy tokens", passed, f"{num_equal} of {len(expected)} sequences are equal")


def _greedy_tokens(config: ModelConfig, folder: Path, device: str, backend: CheckedBackend) -> list[list[int]]:
    prompts = _prompts(config)
    tables = [list(range(index * _BLOCKS_A_CONTEXT, (index + 1) * _BLOCKS_A_CONTEXT)) for index in range(len(prompts))]
    runner = ModelRunner(
        folder,
        kv_cache_bytes=len(prompts) * _BLOCKS_A_CONTEXT * block_bytes(config, torch.float32),
        device=device,
        dtype="float32",
        backend=backend,
        max_graph_rows=_GRAPH_ROWS,
    )
    params = SamplingParams(max_tokens=_NUM_DECODE_STEPS, seed=0, temperature=0.0)
    contexts = [list(prompt) for prompt in prompts]
    computed = [0] * len(prompts)
    for step in range(_NUM_DECODE_STEPS):
        chunks = tuple(
            PlannedChunk(
                key=SequenceKey(RequestId(f"check-{index}"), 0),
                token_ids=context[computed[index] :],
                start=computed[index],
                block_table=tables[index],
                samples=True,
                sample_index=step,
                params=params,
                is_prefill=step == 0,
                context=context,
                num_prompt_tokens=len(prompts[index]),
            )
            for index, context in enumerate(contexts)
        )
        result = runner.run(StepPlan(step, chunks, 0, sum(len(chunk.token_ids) for chunk in chunks)))
        for index, context in enumerate(contexts):
            computed[index] = len(context)
            context += result.token_ids[index]
    return contexts


def _prompts(config: ModelConfig) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    longest = min(_LONGEST_PROMPT, config.max_model_len - _NUM_DECODE_STEPS)
    lengths = sorted({min(length, longest) for length in (1, 5, 16, 40, 255, _LONGEST_PROMPT)})
    return [torch.randint(config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def _check_sampling(config: ModelConfig, device: str) -> Check:
    logits = torch.randn(16, config.vocab_size, generator=torch.Generator().manual_seed(2)) * 4
    settings: tuple[Callable[[int], SamplingParams], ...] = (
        lambda seed: SamplingParams(max_tokens=1, seed=seed),
        lambda seed: SamplingParams(max_tokens=1, seed=seed, temperature=0.7, top_p=0.9),
        lambda seed: SamplingParams(max_tokens=1, seed=seed, top_k=40, min_p=0.02),
        lambda seed: SamplingParams(max_tokens=1, seed=seed, temperature=0.0),
    )
    rows = [
        PlannedChunk(
            key=SequenceKey(RequestId(f"check-{index}"), 0),
            token_ids=[0],
            start=0,
            block_table=[],
            samples=True,
            sample_index=index,
            params=settings[index % len(settings)](index),
            is_prefill=False,
            context=[0],
            num_prompt_tokens=1,
        )
        for index in range(len(logits))
    ]
    sampler = Sampler(config.eos_token_ids)
    expected = sampler.sample(logits.clone(), rows)
    found = sampler.sample(logits.to(device), rows)
    num_equal = sum(one == other for one, other in zip(expected.token_ids, found.token_ids, strict=True))
    return Check("sampling", num_equal == len(rows), f"{num_equal} of {len(rows)} tokens are equal")
