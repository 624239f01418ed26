"""The model runner that the settings ask for, for the commands that run or measure an engine."""

from __future__ import annotations

import errno
import logging
from typing import cast

import torch
from django.conf import settings
from django.core.management.base import CommandError

from serving.config.pools import PoolSettings
from serving.engine.device import usable_cores
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.kv_cache import KVCacheProblem
from serving.engine.model_runner import DtypeName, ModelRunner
from serving.engine.models.config import read_config
from serving.engine.models.making import Backend
from serving.engine.models.problem import ModelFolderProblem
from serving.resources import available_bytes
from serving.worker.grammars import load_masks

logger = logging.getLogger(__name__)


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
            kv_cache_bytes=pool.kv_cache_mb * 2**20,
            num_threads=pool.threads or part_of_cores(engines_here),
            backend=cast(Backend, backend or pool.backend),
            kernels_folder=settings.FOOTPLATE_HOME / "kernels",
            weight_format=cast(WeightFormat, pool.weights if dtype == "bfloat16" else "bfloat16"),
            masks=load_masks(folder, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids),
        )
    except (ModelFolderProblem, ValueError) as problem:
        raise CommandError(str(problem)) from None
    except (KVCacheProblem, MemoryError, RuntimeError, OSError) as problem:
        raise CommandError(_shortage(pool, problem, available=available)) from None
    if runner.config.note:
        logger.warning(runner.config.note)
    return runner


def _shortage(pool: PoolSettings, problem: Exception, *, available: int | None) -> str:
    """One line, with what is needed and what there was, where `problem` is that memory is short; raises it anew where
    it is something else."""
    reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    if not _is_shortage(problem, reason):
        if isinstance(problem, KVCacheProblem):
            return reason
        raise problem
    weights = sum(file.stat().st_size for file in pool.model.glob("*.safetensors"))
    left = "" if available is None else f", and {available >> 20:,} MiB were available"
    return (
        f"memory is short for pool {pool.name}: weights of {weights >> 20:,} MiB and a KV cache of "
        f"{pool.kv_cache_mb:,} MiB are needed{left} ({reason}); see FOOTPLATE_KV_CACHE_MB"
    )


def _is_shortage(problem: Exception, reason: str) -> bool:
    if isinstance(problem, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(problem, OSError) and problem.errno == errno.ENOMEM:
        return True
    words = ("out of memory", "can't allocate memory", "cannot allocate memory", "no memory for")
    return any(word in reason.lower() for word in words)


def weights_of(pool: PoolSettings, *, dtype: str) -> str:
    """How an engine that computes in `dtype` keeps its weights: fewer bits are for bfloat16 alone."""
    return pool.weights if dtype == "bfloat16" else dtype


def part_of_cores(num_engines: int) -> int:
    """Threads for each of so many engines that compute on the cores that this process may use, at least one."""
    return max(1, min(torch.get_num_threads(), usable_cores()) // num_engines)
