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
from serving.engine.models.gpu_model import NoTriton, make_gpu_model
from serving.engine.models.model import Model
from serving.engine.models.quantised_weights import in_format
from serving.engine.models.torch_model import TorchModel
from serving.engine.models.weights import DecoderWeights

_log = logging.getLogger(__name__)

Backend = Literal["auto", "torch", "cpu", "triton"]


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
    max_graph_rows: int = 0,
) -> Model:
    """The model with these weights and a KV cache of `kv_cache_bytes` or a little less.

    `cpu` computes with the C++ kernels, which are kept in `kernels_folder` and built there where they are missing;
    `triton` with Triton's on a GPU, which replays decode steps of up to `max_graph_rows` sequences; `torch` with plain
    PyTorch operations and the backend called `attention`; `auto` takes the kernels where they can be had. A
    `weight_format` of fewer bits is made now; `bfloat16` stands for what the folder has, quantised or not. Raises
    `ValueError` where `cpu` or `triton` was asked for and cannot be had, and for a format that the folder's own
    quantised weights cannot have, `KVCacheProblem` where memory is short.
    """
    _check_format(config, weight_format)
    if config.quantisation is not None and config.quantisation.quantises_activations:
        _log.info(
            "the folder's recipe rounds activations too, which stay in %s here", str(dtype).removeprefix("torch.")
        )
    if backend == "triton" or (backend == "auto" and device.type == "cuda"):
        try:
            return make_gpu_model(
                config,
                in_format(weights, weight_format),
                num_blocks=blocks_for(kv_cache_bytes, block_bytes(config, dtype)),
                dtype=dtype,
                device=device,
                max_graph_rows=max_graph_rows,
            )
        except NoTriton as reason:
            if backend == "triton":
                raise ValueError(f"backend triton cannot be used: {reason}") from None
            _log.info("computing with PyTorch alone: %s", reason)
    elif backend != "torch":
        try:
            kernels = _kernels(config, dtype, device, kernels_folder)
        except NoKernels as reason:
            if backend == "cpu":
                raise ValueError(f"backend cpu cannot be used: {reason}") from None
            _log.info("computing with PyTorch alone: %s", reason)
        else:
            num_blocks = blocks_for(kv_cache_bytes, cpu_model.block_bytes(config))
            model = CpuModel(
                config,
                weights,
                kernels=kernels,
                num_blocks=num_blocks,
                num_threads=torch.get_num_threads(),
                weight_format=weight_format,
            )
            if model.num_made_whole:
                why = "the kernels have no like of what the folder has quantised there"
                _log.info("%d matrices are kept in bfloat16: %s", model.num_made_whole, why)
            return model
    if weight_format == "w8a8":
        _log.warning("weights in w8a8 cost exactness, and without the kernels they save nothing")
    weights = in_format(weights, weight_format)
    num_blocks = blocks_for(kv_cache_bytes, block_bytes(config, dtype))
    return TorchModel(config, weights, num_blocks=num_blocks, dtype=dtype, device=device, attention=attention)


def _check_format(config: ModelConfig, weight_format: WeightFormat) -> None:
    """Refuse what would round a second time what has been rounded to few whole numbers. An 8-bit float is near enough
    to the weight that it was."""
    found = config.quantisation
    if weight_format != "bfloat16" and found is not None and set(found.kinds) != {"fp8"}:
        raise ValueError(
            f"weights={weight_format} was asked for, but the folder's weights are {found.text}; they are taken as they "
            "are where weights=bfloat16"
        )


def _kernels(config: ModelConfig, dtype: torch.dtype, device: torch.device, folder: Path | None) -> Library:
    if device.type != "cpu":
        raise NoKernels(f"the kernels are for the CPU, not for {device}")
    if dtype != torch.bfloat16:
        raise NoKernels(f"the kernels compute in bfloat16, not in {str(dtype).removeprefix('torch.')}")
    if folder is None:
        raise NoKernels("there is no folder to keep the kernels in")
    if (missing := cpu_model.what_is_missing(config)) is not None:
        raise NoKernels(f"the kernels do not compute what {config.architecture} has: {missing}")
    return load_kernels(folder)
