"""The model runner that the settings ask for, for the commands that run or measure an engine."""

from __future__ import annotations

import logging

from django.conf import settings
from django.core.management.base import CommandError

from serving.engine.kv_cache import KVCacheProblem
from serving.engine.model_runner import DtypeName, ModelRunner
from serving.engine.models.config import read_config
from serving.engine.models.making import Backend
from serving.engine.models.problem import ModelFolderProblem
from serving.worker.grammars import load_masks

logger = logging.getLogger(__name__)


def build_runner(*, device: str, dtype: DtypeName, backend: Backend | None = None) -> ModelRunner:
    """Load the model of `FOOTPLATE_MODEL`, with `backend` in place of the one that is set.

    Raises `CommandError`, one line, for what cannot be used.
    """
    folder = settings.FOOTPLATE_MODEL
    try:
        config = read_config(folder)
        runner = ModelRunner(
            folder,
            device=device,
            dtype=dtype,
            kv_cache_bytes=settings.FOOTPLATE_KV_CACHE_MB * 2**20,
            num_threads=settings.FOOTPLATE_THREADS,
            backend=backend or settings.FOOTPLATE_BACKEND,  # type: ignore[arg-type]
            kernels_folder=settings.FOOTPLATE_HOME / "kernels",
            weight_format=settings.FOOTPLATE_WEIGHTS if dtype == "bfloat16" else "bfloat16",  # type: ignore[arg-type]
            masks=load_masks(folder, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids),
        )
    except (ModelFolderProblem, KVCacheProblem, ValueError) as problem:
        raise CommandError(str(problem)) from None
    if runner.config.note:
        logger.warning(runner.config.note)
    return runner


def weights_of(dtype: str) -> str:
    """How an engine that computes in `dtype` keeps its weights: fewer bits are for bfloat16 alone."""
    return str(settings.FOOTPLATE_WEIGHTS) if dtype == "bfloat16" else dtype
