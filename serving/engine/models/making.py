"""The choice of what computes a model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import torch

from serving.engine.kernels.build import NoKernels
from serving.engine.kernels.library import Library
from serving.engine.kernels.loading import load_kernels
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.kv_cache import block_bytes, blocks_for
from serving.engine.models import cpu_model
from serving.engine.models.config import ModelConfig
from serving.engine.models.cpu_model import CpuModel
from serving.engine.models.loader import DecoderWeights
from serving.engine.models.model import Model
from serving.engine.models.quantised_weights import as_if_quantised
from serving.engine.models.torch_model import TorchModel

_log = logging.getLogger(__name__)

Backend = Literal["auto", "torch", "cpu"]


def make_model(
    config: ModelConfig,
    weights: DecoderWeights,
    *,
    kv_cache_bytes: int,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend = "auto",
    kernels_folder: Path | None = None,
    weight_format: WeightFormat = "bfloat16",
    attention: str = "torch",
) -> Model:
    """The model with these weights and a KV cache of `kv_cache_bytes` or a little less.

    `cpu` computes with the C++ kernels, which are kept in `kernels_folder` and built there where they are missing;
    `torch` with plain PyTorch operations and the backend called `attention`; `auto` takes the kernels where they can
    be had. Weights in a `weight_format` of fewer bits are made now; without kernels they save neither time nor memory,
    but are about as exact. Raises `ValueError` where `cpu` was asked for and cannot be had, `KVCacheProblem` where
    memory is short.
    """
    if backend != "torch":
        try:
            kernels = _kernels(config, dtype, device, kernels_folder)
        except NoKernels as reason:
            if backend == "cpu":
                raise ValueError(f"backend cpu cannot be used: {reason}") from None
            _log.info("computing with PyTorch alone: %s", reason)
        else:
            num_blocks = blocks_for(kv_cache_bytes, cpu_model.block_bytes(config))
            return CpuModel(
                config,
                weights,
                kernels=kernels,
                num_blocks=num_blocks,
                num_threads=torch.get_num_threads(),
                weight_format=weight_format,
            )
    if weight_format != "bfloat16":
        _log.warning("weights in %s cost exactness, and without the kernels they save nothing", weight_format)
    weights = as_if_quantised(weights, weight_format)
    num_blocks = blocks_for(kv_cache_bytes, block_bytes(config, dtype))
    return TorchModel(config, weights, num_blocks=num_blocks, dtype=dtype, device=device, attention=attention)


def _kernels(config: ModelConfig, dtype: torch.dtype, device: torch.device, folder: Path | None) -> Library:
    if device.type != "cpu":
        raise NoKernels(f"the kernels are for the CPU, not for {device}")
    if dtype != torch.bfloat16:
        raise NoKernels(f"the kernels compute in bfloat16, not in {str(dtype).removeprefix('torch.')}")
    if folder is None:
        raise NoKernels("there is no folder to keep the kernels in")
    return load_kernels(folder)
