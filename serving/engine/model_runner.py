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

from serving.engine.attention.base import AttentionChunk
from serving.engine.device import DeviceUsage, usable_cores
from serving.engine.embedding import embed
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.kv_cache import BLOCK_SIZE
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.loader import load_weights
from serving.engine.models.making import Backend, make_model
from serving.engine.models.model import Batch, Model
from serving.engine.plan import PlannedChunk, StepPlan, StepResult, StepTimes
from serving.engine.sampling.grammars import MaskProvider
from serving.engine.sampling.prompts import num_read, read_prompts
from serving.engine.sampling.sampler import NOT_FINITE, Sampled, Sampler

DtypeName = Literal["bfloat16", "float32"]
_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclasses.dataclass(frozen=True, slots=True)
class _Arranged:
    """A plan's rows for the model. `sampled`, `reading` and `embedding` are indices of chunks, in their order: the
    logits have first a row for each that samples, then those of the positions read; the hidden states are all those of
    the chunks that embed. `errors` says what is wrong with a chunk's tokens, by index."""

    batch: Batch
    first_rows: list[int]
    sampled: list[int]
    reading: list[int]
    embedding: list[int]
    errors: dict[int, str]

    def chunks_of(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """The chunk that each of `rows` belongs to, by index."""
        found: list[int] = (np.searchsorted(self.first_rows, rows, side="right") - 1).tolist()
        return found


class ModelRunner:
    """Owns the model on its device and the sampler; built and called by the engine's thread only."""

    def __init__(
        self,
        folder: Path,
        *,
        kv_cache_bytes: int,
        device: str = "cpu",
        dtype: DtypeName = "bfloat16",
        num_threads: int = 0,
        attention: str = "torch",
        backend: Backend = "torch",
        kernels_folder: Path | None = None,
        weight_format: WeightFormat = "bfloat16",
        masks: MaskProvider | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Load the model of `folder`, and take `kv_cache_bytes` of the device's memory for keys and values.

        `num_threads` is set for the whole process; 0 is one a core that the process may use. `backend` and
        `weight_format` are explained at `make_model`. Without `masks`, what follows a grammar ends in an error. Raises
        `ModelFolderProblem` for a folder, `KVCacheProblem` for a cache size, and `ValueError` for a device or a backend
        that cannot be used.
        """
        torch.set_num_threads(num_threads or min(torch.get_num_threads(), usable_cores()))
        self._clock = clock
        self._device = usable_device(device)
        self._config = read_config(folder)
        torch_dtype = _DTYPES[dtype]
        weights = load_weights(folder, self._config, dtype=torch_dtype, device=self._device)
        self._model: Model = make_model(
            self._config,
            weights,
            kv_cache_bytes=kv_cache_bytes,
            dtype=torch_dtype,
            device=self._device,
            backend=backend,
            kernels_folder=kernels_folder,
            weight_format=weight_format,
            attention=attention,
        )
        self._masks = masks
        self._sampler = Sampler(self._config.eos_token_ids, masks=masks)

    def device_usage(self) -> DeviceUsage:
        """What the device tells of itself at this moment. Unlike all else here, from any thread."""
        return read_device(self._device)

    @property
    def masks(self) -> MaskProvider | None:
        """Who knows grammars; may be asked from any thread."""
        return self._masks

    @property
    def backend(self) -> str:
        """What computes the model: `torch` or `cpu`."""
        return self._model.name

    @property
    def weight_bytes(self) -> int:
        """What a step reads of the weights at least."""
        return self._model.weight_bytes

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self._config

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self._model.num_blocks

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

        The output layer is computed for sampled rows, and those read of prompts, only; of prompts that are to be
        embedded, the hidden states are summed up. A chunk that cannot be computed (a token outside the vocabulary,
        numbers that are not finite) is named in `errors` and changes no other.
        """
        if not plan.chunks:
            return StepResult(token_ids=())
        began = self._clock()
        arranged = _arrange(plan.chunks, self._config.vocab_size)
        prepared = self._model.prepare(arranged.batch)
        prepared_at = self._clock()
        computed = self._model.forward(prepared)
        self._synchronize()
        computed_at = self._clock()
        num_sampled = len(arranged.sampled)
        prompts = read_prompts(computed.logits[num_sampled:], {index: plan.chunks[index] for index in arranged.reading})
        embedded = embed(computed.hidden, {index: plan.chunks[index] for index in arranged.embedding})
        sampled = self._sampler.sample(
            computed.logits[:num_sampled], [plan.chunks[index] for index in arranged.sampled]
        )
        errors = {arranged.sampled[row]: reason for row, reason in sampled.errors.items()}
        errors |= prompts.errors | embedded.errors
        errors |= dict.fromkeys(arranged.chunks_of(computed.unsound_rows), NOT_FINITE) | arranged.errors
        times = StepTimes(
            prepare_seconds=prepared_at - began,
            forward_seconds=computed_at - prepared_at,
            sample_seconds=self._clock() - computed_at,
            linear_seconds=computed.linear_seconds,
            attention_seconds=computed.attention_seconds,
        )
        logprobs = {arranged.sampled[row]: [entry] for row, entry in sampled.logprobs.items()}
        return StepResult(
            _tokens_by_chunk(arranged, sampled, errors),
            times,
            errors,
            logprobs,
            prompts.logprobs,
            hidden_sums=embedded.hidden_sums,
            embeddings=embedded.embeddings,
        )

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


def _arrange(chunks: tuple[PlannedChunk, ...], vocab_size: int) -> _Arranged:
    """Lay the chunks' tokens out as consecutive rows. Tokens outside the vocabulary are computed as token 0."""
    first_rows = list(itertools.accumulate((len(chunk.token_ids) for chunk in chunks[:-1]), initial=0))
    token_ids = np.fromiter(itertools.chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64)
    sampled = [index for index, chunk in enumerate(chunks) if chunk.samples]
    logit_rows = [first_rows[index] + len(chunks[index].token_ids) - 1 for index in sampled]
    reading = [index for index, chunk in enumerate(chunks) if chunk.reads_prompt]
    for index in reading:
        logit_rows += range(first_rows[index], first_rows[index] + num_read(chunks[index]))
    embedding = [index for index, chunk in enumerate(chunks) if chunk.is_prefill and chunk.embeds]
    hidden_rows = [row for index in embedding for row in _rows_of(chunks[index], first_rows[index])]
    batch = Batch(
        token_ids=token_ids,
        positions=np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks]),
        chunks=[
            AttentionChunk(first_row, len(chunk.token_ids), chunk.start, chunk.block_table)
            for first_row, chunk in zip(first_rows, chunks, strict=True)
        ],
        logit_rows=np.asarray(logit_rows, dtype=np.int64),
        hidden_rows=np.asarray(hidden_rows, dtype=np.int64),
    )
    arranged = _Arranged(batch, first_rows, sampled, reading, embedding, errors={})
    unknown = ((token_ids < 0) | (token_ids >= vocab_size)).nonzero()[0]
    for index, token_id in zip(arranged.chunks_of(unknown), token_ids[unknown].tolist(), strict=True):
        arranged.errors[index] = f"the vocabulary has no token {token_id}"
    token_ids[unknown] = 0
    return arranged


def _rows_of(chunk: PlannedChunk, first_row: int) -> range:
    return range(first_row, first_row + len(chunk.token_ids))


def _tokens_by_chunk(arranged: _Arranged, sampled: Sampled, errors: Mapping[int, str]) -> list[tuple[int, ...]]:
    token_ids: list[tuple[int, ...]] = [()] * len(arranged.batch.chunks)
    for index, token_id in zip(arranged.sampled, sampled.token_ids, strict=True):
        if index not in errors:
            token_ids[index] = (token_id,)
    return token_ids
