"""The model runner that the settings ask for, for the commands that run or measure an engine."""

from __future__ import annotations

import errno
import logging
from typing import cast

import torch
from django.conf import settings
from django.core.management.base import CommandError

from serving.config.pools import PoolSettings
from serving.contracts.messages import EngineBuild
from serving.engine.device import processor_name, usable_cores
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.kv_cache import KVCacheProblem
from serving.engine.memory import MemoryShortage, is_shortage
from serving.engine.model_runner import DtypeName, ModelRunner
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.making import Backend
from serving.engine.models.problem import ModelFolderProblem
from serving.resources import available_bytes
from serving.version import software_version
from serving.worker.grammars import load_masks

logger = logging.getLogger(__name__)

_CPU_CACHE_BYTES = 2**30


def build_runner(
    pool: PoolSettings,
    *,
    device: str | None = None,
    dtype: str | None = None,
    backend: str | None = None,
    engines_here: int = 1,
) -> ModelRunner:
    """Load the pool's model, with what is given in place of the pool's own settings.

    Where the pool says nothing of threads, the engine takes its part of the cores, of which `engines_here` engines
    compute on them. Raises `CommandError`, one line, for what cannot be used.
    """
    folder, device, dtype = pool.model, device or pool.device, dtype or pool.dtype
    # An accelerator has memory of its own, of which PyTorch's reason tells.
    available = available_bytes() if device == "cpu" else None
    try:
        config = read_config(folder)
        runner = ModelRunner(
            folder,
            device=device,
            dtype=cast(DtypeName, dtype),
            kv_cache_bytes=_kv_cache_bytes(pool, device),
            max_step_tokens=pool.max_step_tokens or None,
            max_graph_rows=pool.max_graph_rows,
            gpu_memory_ratio=pool.gpu_memory_ratio,
            num_threads=pool.threads or part_of_cores(engines_here),
            backend=cast(Backend, backend or pool.backend),
            kernels_folder=settings.FOOTPLATE_HOME / "kernels",
            weight_format=cast(WeightFormat, pool.weights if dtype == "bfloat16" else "bfloat16"),
            masks=load_masks(folder, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids),
        )
    except (ModelFolderProblem, ValueError) as problem:
        raise CommandError(str(problem)) from None
    except MemoryShortage as problem:
        raise CommandError(f"memory is short for pool {pool.name}: {problem}") from None
    except (KVCacheProblem, MemoryError, RuntimeError, OSError) as problem:
        raise CommandError(_shortage(pool, problem, device=device, available=available)) from None
    if runner.config.note:
        logger.warning(runner.config.note)
    return runner


def _kv_cache_bytes(pool: PoolSettings, device: str) -> int | None:
    """What the pool sets; otherwise on a CPU a size that any machine has, and None on an accelerator: what is left."""
    if pool.kv_cache_mb:
        return pool.kv_cache_mb * 2**20
    return _CPU_CACHE_BYTES if device == "cpu" else None


def _shortage(pool: PoolSettings, problem: Exception, *, device: str, available: int | None) -> str:
    """One line, with what is needed and what there was, where `problem` is that memory is short; raises it anew where
    it is something else."""
    reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    if not is_shortage(problem) and not (isinstance(problem, OSError) and problem.errno == errno.ENOMEM):
        if isinstance(problem, KVCacheProblem):
            return reason
        raise problem
    weights = sum(file.stat().st_size for file in pool.model.glob("*.safetensors"))
    cache = _kv_cache_bytes(pool, device)
    needed = "and a KV cache" if cache is None else f"and a KV cache of {cache >> 20:,} MiB"
    left = "" if available is None else f", and {available >> 20:,} MiB were available"
    see = "FOOTPLATE_KV_CACHE_MB" if device == "cpu" else "FOOTPLATE_WEIGHTS and FOOTPLATE_GPU_MEMORY_RATIO"
    return (
        f"memory is short for pool {pool.name}: weights of {weights >> 20:,} MiB {needed} are needed{left} ({reason}); "
        f"see {see}"
    )


def weights_of(pool: PoolSettings, config: ModelConfig, *, dtype: str) -> str:
    """How an engine that computes in `dtype` keeps the weights of the model of `config`: as its folder has them, or in
    the pool's format of fewer bits, which is for bfloat16 alone."""
    if dtype == "bfloat16" and pool.weights != "bfloat16":
        return pool.weights
    if config.quantisation is None:
        return dtype
    return config.quantisation.text if dtype == "bfloat16" else f"{config.quantisation.text} in {dtype}"


def build_of(device: str) -> EngineBuild:
    """What an engine on this device computes with, once its runner is there, which sets the threads."""
    is_cpu = device == "cpu"
    return EngineBuild(
        processor=processor_name() if is_cpu else torch.cuda.get_device_name(device),
        num_threads=torch.get_num_threads() if is_cpu else 0,
        footplate_version=software_version(),
        torch_version=str(torch.__version__),
    )


def part_of_cores(num_engines: int) -> int:
    """Threads for each of so many engines that compute on the cores that this process may use, at least one."""
    return max(1, min(torch.get_num_threads(), usable_cores()) // num_engines)
