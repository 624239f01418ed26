"""Computes plans: from token ids to the next token ids, on one device."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import torch

from serving.engine.arranging import Chosen, arrange
from serving.engine.cuda_device import gauge_of, memory_of
from serving.engine.device import DeviceUsage, usable_cores
from serving.engine.embedding import SumsAt, begin_embedding
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.kv_cache import BLOCK_SIZE, MIN_BLOCKS, block_bytes
from serving.engine.launched import EmptyStep, LaunchedStep
from serving.engine.memory import DEFAULT_MEMORY_RATIO, DEFAULT_STEP_TOKENS, DeviceMemory
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.loader import open_weights
from serving.engine.models.making import Backend, make_model
from serving.engine.models.model import Model, RecordingModel
from serving.engine.models.weights import DecoderWeights
from serving.engine.phases import HostPhases, Phases, StreamPhases
from serving.engine.plan import Launched, StepPlan, StepResult
from serving.engine.sampling.grammars import MaskProvider
from serving.engine.sampling.prompts import begin_reading
from serving.engine.sampling.sampler import Sampler
from serving.engine.sizing import MemoryTerms, size_cache
from serving.engine.transfers import Download

DtypeName = Literal["bfloat16", "float32"]
_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class LoadWeights(Protocol):
    """Reads the weights of the model in a folder, or makes weights of its shape."""

    def __call__(
        self, folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device
    ) -> DecoderWeights: ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Before:
    """What the next step may need of a step that was launched, before anyone collects it."""

    chosen: Chosen
    sums: SumsAt


class ModelRunner:
    """Owns the model on its device and the sampler; built and called by the engine's thread only."""

    def __init__(
        self,
        folder: Path,
        *,
        kv_cache_bytes: int | None,
        device: str = "cpu",
        dtype: DtypeName = "bfloat16",
        num_threads: int = 0,
        attention: str = "torch",
        backend: Backend = "torch",
        kernels_folder: Path | None = None,
        weight_format: WeightFormat = "bfloat16",
        masks: MaskProvider | None = None,
        looks_ahead: bool | None = None,
        max_graph_rows: int = 256,
        max_step_tokens: int | None = None,
        gpu_memory_ratio: float = DEFAULT_MEMORY_RATIO,
        memory: DeviceMemory | None = None,
        clock: Callable[[], float] = time.perf_counter,
        load: LoadWeights = open_weights,
    ) -> None:
        """Load the model of `folder`, and take `kv_cache_bytes` of the device's memory for keys and values.

        On an accelerator, `gpu_memory_ratio` of its memory is for weights, steps of `max_step_tokens` tokens and the KV
        cache, which is all that is left where `kv_cache_bytes` is None. `memory` is the device's own, unless another is
        given: then any device is an accelerator. On a CPU there is no bound for steps but one that is given.

        `num_threads` is set for the whole process; 0 is one a core that the process may use. `backend` and
        `weight_format` are explained at `make_model`. Without `masks`, what follows a grammar ends in an error. `load`
        may make weights that no folder has, of which `config.json` alone is read then. Raises
        `ModelFolderProblem` for a folder, `KVCacheProblem` for a cache size (`MemoryShortage` where an accelerator's
        memory does not do), and `ValueError` for a device or a backend that cannot be used.
        """
        torch.set_num_threads(num_threads or min(torch.get_num_threads(), usable_cores()))
        _settle_vector_functions()
        self._clock = clock
        self._device = usable_device(device)
        self._gauge = gauge_of(self._device)
        memory = memory or memory_of(self._device)
        self._config = read_config(folder)
        torch_dtype = _DTYPES[dtype]
        least_bytes = MIN_BLOCKS * block_bytes(self._config, torch_dtype)
        if memory is None and kv_cache_bytes is None:
            raise ValueError("kv_cache_bytes must be given on a CPU, where nothing says how much is left")
        self._masks = masks
        self._sampler = Sampler(self._config.eos_token_ids, masks=masks)
        self._looks_ahead = self._device.type == "cuda" if looks_ahead is None else looks_ahead
        self._before: _Before | None = None
        self._max_step_tokens = max_step_tokens
        # Weights too are loaded in the turn: those of another engine, which measures, would be taken for its own.
        with contextlib.nullcontext() if memory is None else memory.turn():
            self._model: Model = make_model(
                self._config,
                load(folder, self._config, dtype=torch_dtype, device=self._device),
                kv_cache_bytes=least_bytes if memory is not None or kv_cache_bytes is None else kv_cache_bytes,
                dtype=torch_dtype,
                device=self._device,
                backend=backend,
                kernels_folder=kernels_folder,
                weight_format=weight_format,
                attention=attention,
                max_graph_rows=max_graph_rows,
            )
            if memory is not None:
                self._max_step_tokens = max_step_tokens or DEFAULT_STEP_TOKENS
                size_cache(
                    self._model,
                    memory,
                    MemoryTerms(
                        ratio=gpu_memory_ratio,
                        kv_cache_bytes=kv_cache_bytes,
                        max_step_tokens=self._max_step_tokens,
                    ),
                    block_bytes=least_bytes // MIN_BLOCKS,
                    max_model_len=self.max_model_len,
                    compute=self._compute_in_flight,
                )
            if isinstance(self._model, RecordingModel):
                self._model.record_steps()

    def device_usage(self) -> DeviceUsage:
        """What the device tells of itself at this moment. Unlike all else here, from another thread: one, always."""
        return self._gauge()

    @property
    def masks(self) -> MaskProvider | None:
        """Who knows grammars; may be asked from any thread."""
        return self._masks

    @property
    def backend(self) -> str:
        """What computes the model: `torch`, `cpu` or `triton`."""
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
    def max_step_tokens(self) -> int | None:
        """As `BoundedRunner.max_step_tokens`."""
        return self._max_step_tokens

    @property
    def long_from(self) -> int | None:
        """As `DividedRunner.long_from`."""
        return self._config.rope.long_from

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence unless it ignores them."""
        return self._config.eos_token_ids

    @property
    def looks_ahead(self) -> bool:
        """Whether it gains anything to launch a plan before the one before was collected: on a GPU, which computes
        while the host plans. Everything else computes in `launch`."""
        return self._looks_ahead

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the keys and values of all planned tokens, and choose the next token of each chunk that samples.

        The output layer is computed for sampled rows, and those read of prompts, only; of prompts that are to be
        embedded, the hidden states are summed up. A chunk that cannot be computed (a token outside the vocabulary,
        numbers that are not finite) is named in `errors` and changes no other.
        """
        return self.launch(plan).collect()

    def launch(self, plan: StepPlan) -> Launched:
        """As `AheadRunner.launch` and, collected, as `run`. Raises where it cannot be begun: its tokens are not to
        be awaited then.

        On a GPU the host waits for nothing here: tokens that are awaited, and sums of hidden states, are handed from
        step to step on the device.
        """
        if not plan.chunks:
            return EmptyStep()
        before, self._before = self._before, None
        return self._launch(plan, before)

    @torch.inference_mode()
    def _launch(self, plan: StepPlan, before: _Before | None) -> LaunchedStep:
        phases = self._phases()
        arranged = arrange(
            plan.chunks,
            self._config.vocab_size,
            before=None if before is None else before.chosen,
            long_from=self.long_from,
        )
        prepared = self._model.prepare(arranged.batch)
        phases.prepared()
        computed = self._model.forward(prepared)
        phases.computed()
        download = Download(self._device)
        is_unsound = download.add(computed.is_unsound)
        num_sampled = len(arranged.sampled)
        prompts = begin_reading(
            computed.logits[num_sampled:], {index: plan.chunks[index] for index in arranged.reading}, download
        )
        embeddings = begin_embedding(
            computed.hidden,
            {index: plan.chunks[index] for index in arranged.embedding},
            download,
            before=None if before is None else before.sums,
        )
        sampling = self._sampler.begin(computed.logits[:num_sampled], arranged.choosing, download)
        phases.sampled()
        download.send()
        self._before = _Before(Chosen(arranged.sampled, sampling.token_ids), embeddings.sums_at)
        return LaunchedStep(
            arranged=arranged,
            sampling=sampling,
            prompts=prompts,
            embeddings=embeddings,
            is_unsound=is_unsound,
            linear_seconds=computed.linear_seconds,
            attention_seconds=computed.attention_seconds,
            download=download,
            phases=phases,
        )

    def _compute_in_flight(self, plans: Sequence[StepPlan]) -> None:
        """Compute each of `plans` behind each other one, which is in flight meanwhile where this looks ahead."""
        before: Launched = EmptyStep()
        for plan in (*plans, *plans[:1]):
            if not self._looks_ahead:
                before.collect()
                before = EmptyStep()
            launched = self.launch(plan)
            before.collect()
            before = launched
        before.collect()
        self._before = None

    def _phases(self) -> Phases:
        return StreamPhases(self._clock) if self._device.type == "cuda" else HostPhases(self._clock)


def usable_device(name: str) -> torch.device:
    """The device of this name; raises `ValueError` where PyTorch cannot use it."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but PyTorch finds no usable GPU")
    return device


def _settle_vector_functions() -> None:
    """Call PyTorch's vector functions once, by one thread. Which of their forms is right for the processor they find
    out at their first call; where several threads make it at once, some round otherwise than ever after."""
    one = torch.ones(1)
    for function in (torch.exp, torch.expm1, torch.log, torch.log1p, torch.sin, torch.cos, torch.tanh, torch.erf):
        function(one)
