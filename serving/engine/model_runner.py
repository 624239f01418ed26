"""Computes plans: from token ids to the next token ids, on one device."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionBackend, AttentionChunk
from serving.engine.device import DeviceUsage
from serving.engine.kv_cache import BLOCK_SIZE, KVCache, blocks_for
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.decoder import Decoder
from serving.engine.models.loader import load_weights
from serving.engine.plan import PlannedChunk, StepPlan, StepResult, StepTimes
from serving.engine.sampler import NOT_FINITE, Sampled, SampledRow, Sampler

DtypeName = Literal["bfloat16", "float32"]
_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """A plan's rows as arrays. `sampled` are indices of chunks, in their order; `errors` says what is wrong with a
    chunk's tokens, by index."""

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    chunks: list[AttentionChunk]
    first_rows: list[int]
    sampled: list[int]
    errors: dict[int, str]

    def chunks_of(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """The chunk that each of `rows` belongs to, by index."""
        found: list[int] = (np.searchsorted(self.first_rows, rows, side="right") - 1).tolist()
        return found


class ModelRunner:
    """Owns the weights, the KV cache and the attention backend; built and called by the engine's thread only."""

    def __init__(
        self,
        folder: Path,
        *,
        kv_cache_bytes: int,
        device: str = "cpu",
        dtype: DtypeName = "bfloat16",
        num_threads: int = 0,
        attention: str = "torch",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Load the model of `folder`, and take `kv_cache_bytes` of the device's memory for keys and values.

        `num_threads` 0 leaves torch's own choice, one a core; otherwise it is set for the whole process. Raises
        `ModelFolderProblem` for a folder, `KVCacheProblem` for a cache size, and `ValueError` for a device or a backend
        that cannot be used.
        """
        if num_threads:
            torch.set_num_threads(num_threads)
        self._clock = clock
        self._device = usable_device(device)
        self._config = read_config(folder)
        torch_dtype = _DTYPES[dtype]
        num_blocks = blocks_for(kv_cache_bytes, self._config, torch_dtype)
        weights = load_weights(folder, self._config, dtype=torch_dtype, device=self._device)
        cache = KVCache(self._config, num_blocks=num_blocks, dtype=torch_dtype, device=self._device)
        self._num_blocks = num_blocks
        self._attention: AttentionBackend = make_attention(attention, cache, num_heads=self._config.num_heads)
        self._decoder = Decoder(self._config, weights)
        self._sampler = Sampler(self._config.eos_token_ids)

    def device_usage(self) -> DeviceUsage:
        """What the device tells of itself at this moment. Unlike all else here, from any thread."""
        return read_device(self._device)

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self._config

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self._num_blocks

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        return BLOCK_SIZE

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens, of the model alone: the KV cache may hold less."""
        return self._config.max_model_len

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence unless it ignores them."""
        return self._config.eos_token_ids

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute the keys and values of all planned tokens, and choose the next token of each chunk that samples.

        The output layer is computed for sampled rows only. A chunk that cannot be computed (a token outside the
        vocabulary, numbers that are not finite) is named in `errors` and changes no other.
        """
        if not plan.chunks:
            return StepResult(token_ids=())
        began = self._clock()
        batch = _arrange(plan.chunks, self._config.vocab_size)
        prepared = self._attention.prepare(batch.chunks)
        token_ids, positions = self._to_device(batch.token_ids), self._to_device(batch.positions)
        arranged = self._clock()
        hidden = self._decoder.forward(token_ids, positions, attention=self._attention, batch=prepared)
        logits = self._logits(hidden, batch)
        self._synchronize()
        computed = self._clock()
        sampled = self._sample(logits, plan, batch)
        errors = {batch.sampled[row]: reason for row, reason in sampled.errors.items()}
        errors |= _not_finite(hidden, batch) | batch.errors
        times = StepTimes(arranged - began, computed - arranged, self._clock() - computed)
        return StepResult(_tokens_by_chunk(batch, sampled, errors), times, errors)

    def _logits(self, hidden: torch.Tensor, batch: _Batch) -> torch.Tensor | None:
        if not batch.sampled:
            return None
        last_rows = [batch.chunks[index].first_row + batch.chunks[index].num_tokens - 1 for index in batch.sampled]
        return self._decoder.logits(hidden[torch.tensor(last_rows, device=self._device)])

    def _sample(self, logits: torch.Tensor | None, plan: StepPlan, batch: _Batch) -> Sampled:
        if logits is None:
            return Sampled([], {})
        chunks = [plan.chunks[index] for index in batch.sampled]
        rows = [SampledRow(chunk.params, chunk.key.choice, chunk.sample_index) for chunk in chunks]
        return self._sampler.sample(logits, rows)

    def _to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _synchronize(self) -> None:
        """Wait for the device, so that each phase's time is its own; what follows reads tokens and waits anyway."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def usable_device(name: str) -> torch.device:
    """The device of this name; raises `ValueError` where PyTorch cannot use it."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but PyTorch finds no usable GPU")
    return device


def read_device(device: torch.device) -> DeviceUsage:
    """What the device's driver tells at this moment; nothing for the CPU. From any thread.

    Each is None where the driver does not tell it, as it tells no utilisation of a part of a GPU.
    """
    if device.type != "cuda":
        return DeviceUsage()
    return DeviceUsage(ratio=_cuda_ratio(device), memory_bytes=_cuda_memory(device))


def _cuda_ratio(device: torch.device) -> float | None:
    try:
        return torch.cuda.utilization(device) / 100
    except Exception:  # The driver's library has errors of its own, which derive from nothing narrower.
        return None


def _cuda_memory(device: torch.device) -> int | None:
    try:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return None
    return total_bytes - free_bytes


def _arrange(chunks: tuple[PlannedChunk, ...], vocab_size: int) -> _Batch:
    """Lay the chunks' tokens out as consecutive rows. Tokens outside the vocabulary are computed as token 0."""
    first_rows = list(itertools.accumulate((len(chunk.token_ids) for chunk in chunks[:-1]), initial=0))
    token_ids = np.fromiter(itertools.chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64)
    batch = _Batch(
        token_ids=token_ids,
        positions=np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks]),
        chunks=[
            AttentionChunk(first_row, len(chunk.token_ids), chunk.start, chunk.block_table)
            for first_row, chunk in zip(first_rows, chunks, strict=True)
        ],
        first_rows=first_rows,
        sampled=[index for index, chunk in enumerate(chunks) if chunk.samples],
        errors={},
    )
    unknown = ((token_ids < 0) | (token_ids >= vocab_size)).nonzero()[0]
    for index, token_id in zip(batch.chunks_of(unknown), token_ids[unknown].tolist(), strict=True):
        batch.errors[index] = f"the vocabulary has no token {token_id}"
    token_ids[unknown] = 0
    return batch


def _not_finite(hidden: torch.Tensor, batch: _Batch) -> dict[int, str]:
    """Chunks with a row that is not finite. Looked for here, since the KV cache does not hand such numbers on: a later
    row of the sequence would look sound."""
    rows = (~hidden.isfinite().all(dim=-1)).nonzero().squeeze(-1).cpu().numpy()
    return dict.fromkeys(batch.chunks_of(rows), NOT_FINITE)


def _tokens_by_chunk(batch: _Batch, sampled: Sampled, errors: Mapping[int, str]) -> list[tuple[int, ...]]:
    token_ids: list[tuple[int, ...]] = [()] * len(batch.chunks)
    for index, token_id in zip(batch.sampled, sampled.token_ids, strict=True):
        if index not in errors:
            token_ids[index] = (token_id,)
    return token_ids
