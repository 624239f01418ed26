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

from serving.contracts.messages import TokenLogprobs
from serving.engine.attention.base import AttentionChunk
from serving.engine.device import DeviceUsage
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.kv_cache import BLOCK_SIZE, blocks_for
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.loader import load_weights
from serving.engine.models.making import Backend, make_model
from serving.engine.models.model import Batch, Model
from serving.engine.plan import PlannedChunk, StepPlan, StepResult, StepTimes
from serving.engine.sampling.logprobs import logprobs_of
from serving.engine.sampling.prompt_pieces import is_read, pieces_of, rest_of
from serving.engine.sampling.sampler import NOT_FINITE, Sampled, Sampler

DtypeName = Literal["bfloat16", "float32"]
_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclasses.dataclass(frozen=True, slots=True)
class _Arranged:
    """A plan's rows for the model. `sampled` are indices of chunks, in their order; `errors` says what is wrong with a
    chunk's tokens, by index."""

    batch: Batch
    first_rows: list[int]
    sampled: list[int]
    errors: dict[int, str]

    def chunks_of(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """The chunk that each of `rows` belongs to, by index."""
        found: list[int] = (np.searchsorted(self.first_rows, rows, side="right") - 1).tolist()
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _PromptsRead:
    """The prompts whose probabilities were wanted, read: what of a plan's `chunks` is left to compute, what was found
    by chunk, what went wrong by chunk, and how long it took."""

    chunks: tuple[PlannedChunk, ...]
    logprobs: dict[int, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    errors: dict[int, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Load the model of `folder`, and take `kv_cache_bytes` of the device's memory for keys and values.

        `num_threads` 0 leaves torch's own choice, one a core; otherwise it is set for the whole process. `backend` and
        `weight_format` are explained at `make_model`. Raises `ModelFolderProblem` for a folder, `KVCacheProblem` for a cache size, and
        `ValueError` for a device or a backend that cannot be used.
        """
        if num_threads:
            torch.set_num_threads(num_threads)
        self._clock = clock
        self._device = usable_device(device)
        self._config = read_config(folder)
        torch_dtype = _DTYPES[dtype]
        num_blocks = blocks_for(kv_cache_bytes, self._config, torch_dtype)
        weights = load_weights(folder, self._config, dtype=torch_dtype, device=self._device)
        self._num_blocks = num_blocks
        self._model: Model = make_model(
            self._config,
            weights,
            num_blocks=num_blocks,
            dtype=torch_dtype,
            device=self._device,
            backend=backend,
            kernels_folder=kernels_folder,
            weight_format=weight_format,
            attention=attention,
        )
        self._sampler = Sampler(self._config.eos_token_ids)

    def device_usage(self) -> DeviceUsage:
        """What the device tells of itself at this moment. Unlike all else here, from any thread."""
        return read_device(self._device)

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
        read = self._read_prompts(plan.chunks)
        began = self._clock()
        arranged = _arrange(read.chunks, self._config.vocab_size)
        prepared = self._model.prepare(arranged.batch)
        prepared_at = self._clock()
        computed = self._model.forward(prepared)
        self._synchronize()
        computed_at = self._clock()
        sampled = self._sampler.sample(computed.logits, [read.chunks[index] for index in arranged.sampled])
        errors = {arranged.sampled[row]: reason for row, reason in sampled.errors.items()}
        errors |= dict.fromkeys(arranged.chunks_of(computed.unsound_rows), NOT_FINITE) | arranged.errors
        errors |= read.errors
        times = StepTimes(
            prepare_seconds=prepared_at - began,
            forward_seconds=computed_at - prepared_at + read.seconds,
            sample_seconds=self._clock() - computed_at,
            attention_seconds=computed.attention_seconds,
        )
        logprobs = {arranged.sampled[row]: [entry] for row, entry in sampled.logprobs.items()}
        return StepResult(_tokens_by_chunk(arranged, sampled, errors), times, errors, logprobs, read.logprobs)

    def _read_prompts(self, chunks: tuple[PlannedChunk, ...]) -> _PromptsRead:
        """Compute, piece by piece, the chunks that are to tell how probable their prompts are."""
        wanting = [index for index, chunk in enumerate(chunks) if chunk.is_prefill and is_read(chunk)]
        if not wanting:
            return _PromptsRead(chunks)
        began = self._clock()
        rest = list(chunks)
        logprobs: dict[int, list[TokenLogprobs]] = {}
        errors: dict[int, str] = {}
        for index in wanting:
            rest[index] = rest_of(chunks[index])
            found: list[TokenLogprobs] = []
            for piece in pieces_of(chunks[index]):
                entries = self._read_piece(piece)
                if isinstance(entries, str):
                    errors[index] = entries
                    break
                found += entries
            logprobs[index] = found
        return _PromptsRead(tuple(rest), logprobs, errors, self._clock() - began)

    def _read_piece(self, piece: PlannedChunk) -> list[TokenLogprobs] | str:
        """How probable the tokens after each position of `piece` are, or what is wrong with it."""
        vocab_size = self._config.vocab_size
        arranged = _arrange((piece,), vocab_size)
        batch = dataclasses.replace(arranged.batch, logit_rows=np.arange(len(piece.token_ids)))
        computed = self._model.forward(self._model.prepare(batch))
        if arranged.errors:
            return arranged.errors[0]
        if len(computed.unsound_rows) or not computed.logits.isfinite().all():
            return NOT_FINITE
        # One outside the vocabulary is told of where it is computed itself.
        following = [
            token_id if 0 <= token_id < vocab_size else 0 for token_id in piece.context[piece.start + 1 : piece.end + 1]
        ]
        num_top = piece.params.num_prompt_logprobs or 0
        return logprobs_of(computed.logits, following, [num_top] * len(following))

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
    batch = Batch(
        token_ids=token_ids,
        positions=np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks]),
        chunks=[
            AttentionChunk(first_row, len(chunk.token_ids), chunk.start, chunk.block_table)
            for first_row, chunk in zip(first_rows, chunks, strict=True)
        ],
        logit_rows=np.asarray(
            [first_rows[index] + len(chunks[index].token_ids) - 1 for index in sampled], dtype=np.int64
        ),
    )
    arranged = _Arranged(batch, first_rows, sampled, errors={})
    unknown = ((token_ids < 0) | (token_ids >= vocab_size)).nonzero()[0]
    for index, token_id in zip(arranged.chunks_of(unknown), token_ids[unknown].tolist(), strict=True):
        arranged.errors[index] = f"the vocabulary has no token {token_id}"
    token_ids[unknown] = 0
    return arranged


def _tokens_by_chunk(arranged: _Arranged, sampled: Sampled, errors: Mapping[int, str]) -> list[tuple[int, ...]]:
    token_ids: list[tuple[int, ...]] = [()] * len(arranged.batch.chunks)
    for index, token_id in zip(arranged.sampled, sampled.token_ids, strict=True):
        if index not in errors:
            token_ids[index] = (token_id,)
    return token_ids
