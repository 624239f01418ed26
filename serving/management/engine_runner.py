"""The model runner that the settings ask for, for the commands that run or measure an engine."""

from __future__ import annotations

import logging

from django.conf import settings
from django.core.management.base import CommandError

from serving.engine.kv_cache import KVCacheProblem
from serving.engine.model_runner import DtypeName, ModelRunner
from serving.engine.models.problem import ModelFolderProblem

logger = logging.getLogger(__name__)


def build_runner(*, device: str, dtype: DtypeName) -> ModelRunner:
    """Load the model of `FOOTPLATE_MODEL`. Raises `CommandError`, one line, for what cannot be used."""
    try:
        runner = ModelRunner(
            settings.FOOTPLATE_MODEL,
            device=device,
            dtype=dtype,
            kv_cache_bytes=settings.FOOTPLATE_KV_CACHE_MB * 2**20,
            num_threads=settings.FOOTPLATE_THREADS,
        )
    except (ModelFolderProblem, KVCacheProblem, ValueError) as problem:
        raise CommandError(str(problem)) from None
    if runner.config.note:
        logger.warning(runner.config.note)
    return runner
