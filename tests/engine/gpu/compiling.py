"""Compiles for a GPU that is not there what kernels' callers launch: a program of its own, since Triton decides when it
is imported whether it compiles or interprets.

Prints a JSON object a kernel: its name, and how many registers of a thread did not fit and lie in memory instead.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from serving.engine.attention.base import AttentionChunk, LayerAttention
from serving.engine.attention.triton_backend import TritonAttention
from serving.engine.kernels.gpu.activations import gate
from serving.engine.kernels.gpu.norms import add_rms_norm, rms_norm
from serving.engine.kernels.gpu.products import dequantise, multiply
from serving.engine.kernels.gpu.rotary import HeadNorm, rotate_and_store
from serving.engine.kernels.gpu.thresholds import find_thresholds
from serving.engine.kv_cache import BLOCK_SIZE, KVCache
from serving.engine.models.packed import Kind, PackedWeights

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class _AbsentDevice:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_launches(launch: Callable[[], object], capability: int) -> dict[str, Any]:
    """Call `launch` with every kernel compiled instead of run; what was compiled, by name and order."""
    compiled: dict[str, Any] = {}
    driver.set_active(_AbsentDevice(GPUTarget("cuda", capability, 32)))
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled[f"{self.fn.__name__} {len(compiled)}"] = kernel
        return kernel

    JITFunction.run = compile_only
    try:
        launch()
    finally:
        JITFunction.run = run
    return compiled


def num_spilled_bytes(kernel: Any) -> int:
    """Bytes of local memory that a thread of the compiled kernel uses."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(kernel.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+).* LOCAL:(\d+)", usage)
    assert found, usage
    return int(found[1]) + int(found[2])


def launch_between_products(dtype: torch.dtype) -> None:
    """Norms, rotation and activations as models of 1B to 8B have them."""
    rows, weight = torch.empty(8, 4096, dtype=dtype), torch.empty(4096, dtype=dtype)
    for adds_one in (False, True):
        rms_norm(rows, weight, 1e-5, adds_one=adds_one)
        add_rms_norm(rows, rows.clone(), weight, 1e-5, adds_one=adds_one)
    rms_norm(torch.empty(8, 40, 128, dtype=dtype)[:, :32], torch.empty(128, dtype=dtype), 1e-5)
    gate(torch.empty(8, 2 * 14336, dtype=dtype), "silu")
    gate(torch.empty(8, 2 * 9216, dtype=dtype), "gelu_tanh")
    for num_heads, num_kv_heads, head_dim, rotary_dim, is_normed in (
        (32, 8, 64, 64, False), (32, 8, 128, 128, True), (24, 8, 128, 96, False), (9, 3, 64, 64, False),
        (8, 4, 256, 256, True), (32, 32, 80, 32, False),
    ):  # fmt: skip
        cache = torch.empty(num_kv_heads, 64, BLOCK_SIZE * head_dim, dtype=dtype)
        angles = torch.empty(8, rotary_dim // 2, dtype=dtype)
        weight = torch.empty(head_dim, dtype=dtype)
        rotate_and_store(
            torch.empty(8, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype),
            num_heads=num_heads,
            cosines=angles,
            sines=angles,
            slots=torch.empty(8, dtype=torch.int32),
            keys=cache,
            values=cache,
            norm=HeadNorm(weight, weight, 1e-6) if is_normed else None,
        )


def launch_products(dtype: torch.dtype) -> None:
    """Products of few and more rows by each kind of packed weights, with groups as checkpoints have them."""
    for weights in (
        _weights("int4", 4096, group=128, has_offsets=True),
        _weights("int4", 4096, group=32, has_offsets=True),
        _weights("int4", 1100, group=1100),
        _weights("int8", 4096, group=32),
        _weights("fp8", 4096, group=128, outputs_per_scale=128),
    ):
        for num_rows in (1, 32, 64, 128):
            multiply(torch.empty(num_rows, weights.num_inputs, dtype=dtype), weights, torch.empty(4096, dtype=dtype))
        dequantise(weights, dtype)


def _weights(
    kind: Kind, num_inputs: int, *, group: int, outputs_per_scale: int = 1, has_offsets: bool = False
) -> PackedWeights:
    dtype = {"int4": torch.uint8, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[kind]
    scales = torch.empty(-(-4096 // outputs_per_scale), -(-num_inputs // group), dtype=torch.float16)
    quanta = torch.empty(4096, num_inputs // 2 if kind == "int4" else num_inputs, dtype=dtype)
    return PackedWeights(kind, quanta, scales, scales if has_offsets else None, outputs_per_scale, group)


def launch_sampling(dtype: torch.dtype) -> None:
    """Thresholds of a batch whose logits are fp32, whatever the model computes in."""
    ranks, shares = torch.empty(8, dtype=torch.int64), torch.empty(8, dtype=torch.float64)
    find_thresholds(torch.empty(8, 128256), shares, ranks, shares)


def launch_attention(dtype: torch.dtype) -> None:
    """Rows that decode and prompts' chunks in one step, with the heads that models have, windows and softcaps."""
    for num_heads, num_kv_heads, head_dim, windows, softcap in (
        (32, 8, 64, [None], None), (32, 8, 128, [None], None), (32, 32, 80, [None], None),
        (8, 4, 256, [None, 1024], 50.0),
    ):  # fmt: skip
        shape = types.SimpleNamespace(num_layers=len(windows), num_kv_heads=num_kv_heads, head_dim=head_dim)
        cache = KVCache(shape, num_blocks=600, dtype=dtype, device=torch.device("cpu"))
        layers = [LayerAttention(head_dim**-0.5, window, softcap) for window in windows]
        with knobs.runtime.scope():
            knobs.runtime.interpret = True  # Kernels are defined by now; this alone asks whether a CPU will do.
            attention = TritonAttention(cache, num_heads=num_heads, layers=layers)
        chunks = [AttentionChunk(0, 1, 4000, range(251)), AttentionChunk(1, 70, 3000, range(251, 500))]
        batch = attention.prepare(chunks)
        for layer in range(len(windows)):
            attention.attend_stored(layer, torch.empty(71, num_heads, head_dim, dtype=dtype), batch=batch)


LAUNCHES: dict[str, Callable[[torch.dtype], None]] = {
    "attention": launch_attention,
    "sampling": launch_sampling,
    "between products": launch_between_products,
    "products": launch_products,
}


def main() -> None:
    """`compiling.py WHAT DTYPE CAPABILITY`."""
    what, dtype, capability = sys.argv[1:]
    assert "TRITON_INTERPRET" not in os.environ
    for name, kernel in compile_launches(lambda: LAUNCHES[what](DTYPES[dtype]), int(capability)).items():
        print(json.dumps({"kernel": name, "num_spilled_bytes": num_spilled_bytes(kernel)}))


if __name__ == "__main__":
    main()
