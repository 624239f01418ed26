"""Every kernel beside the same computation in fp32 or fp64, on the device and in the dtypes that serve."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F  # noqa: N812

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionChunk, LayerAttention
from serving.engine.bench.gpu.shapes import packed_weights
from serving.engine.kernels.gpu.activations import gate
from serving.engine.kernels.gpu.norms import add_rms_norm, rms_norm
from serving.engine.kernels.gpu.products import multiply
from serving.engine.kernels.gpu.rotary import HeadNorm, rotate_and_store
from serving.engine.kv_cache import BLOCK_SIZE, KVCache
from serving.engine.models.config import ModelConfig
from serving.engine.models.feed_forward import choose_experts, mix_experts
from serving.engine.models.operations import rms_norm as plain_rms_norm
from serving.engine.models.operations import rms_norm_adding_one
from serving.engine.models.packed import Kind, dequantised
from serving.engine.models.rope import Rotation, rotate
from serving.engine.models.weights import DenseWeights, PlainMatrix, SparseWeights, stacked

_LARGEST_ERRORS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
EPS = 1e-5
_POISON = float("nan")

_Pair = tuple[torch.Tensor, torch.Tensor]
"""What a kernel computed, and what it should have."""
_Check = Callable[[ModelConfig, torch.device, torch.dtype], _Pair]


@dataclasses.dataclass(frozen=True, slots=True)
class KernelCheck:
    """How far a kernel is from its reference: the norm of the difference over the norm of what it should be."""

    kernel: str
    dtype: str
    error: float
    largest_error: float
    problem: str = ""
    """Why there is no result, where there is none: then the error is infinite."""

    @property
    def passed(self) -> bool:
        """Whether that is within what the dtype's rounding explains; never for what is no number."""
        return self.error <= self.largest_error


def check_kernels(config: ModelConfig, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> Iterator[KernelCheck]:
    """Check each family of kernels at the sizes of the model of `config`, in each of `dtypes`."""
    for dtype in dtypes:
        for name, check in _CHECKS.items():
            torch.manual_seed(0)
            yield _checked(name, check, config, device=device, dtype=dtype)


def _checked(name: str, check: _Check, config: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> KernelCheck:
    kind, largest = str(dtype).removeprefix("torch."), _LARGEST_ERRORS[dtype]
    try:
        error = _relative_error(*check(config, device, dtype))
    except Exception as problem:  # A kernel that does not compile is a finding, not an end.
        words = (str(problem).splitlines() or [""])[0]
        return KernelCheck(name, kind, math.inf, largest, f"{type(problem).__name__}: {words}")
    return KernelCheck(name, kind, error, largest)


def _relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    difference = torch.linalg.vector_norm(result.double() - expected.double())
    error = float(difference / torch.linalg.vector_norm(expected.double()))
    return math.inf if math.isnan(error) else error


def _check_norms(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> _Pair:
    added, residual = torch.randn(2, 33, config.hidden_size, device=device).to(dtype)
    weight = torch.randn(config.hidden_size, device=device).to(dtype)
    total = added.float() + residual.float()
    expected = plain_rms_norm(total.to(dtype).double(), weight.double(), EPS)
    adding_one = rms_norm_adding_one(total.to(dtype).double(), weight.double(), EPS)
    found = [rms_norm(total.to(dtype), weight, EPS), rms_norm(total.to(dtype), weight, EPS, adds_one=True)]
    found += add_rms_norm(added, residual.clone(), weight, EPS)
    found += add_rms_norm(added, residual, weight, EPS, adds_one=True)
    return torch.cat(found), torch.cat([expected, adding_one, expected, total, adding_one, total])


def _check_gates(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> _Pair:
    gate_up = torch.randn(17, 2 * config.intermediate_size, device=device).mul_(2).to(dtype)
    gates, ups = gate_up.float().chunk(2, dim=-1)
    expected = [F.silu(gates) * ups, F.gelu(gates, approximate="tanh") * ups]
    return torch.cat([gate(gate_up, "silu"), gate(gate_up, "gelu_tanh")]), torch.cat(expected)


def _check_rotation(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, *, rotated_share: float = 1.0
) -> _Pair:
    num_tokens, num_blocks = 37, 8
    sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    fused = torch.randn(num_tokens, sum(sizes) * config.head_dim, device=device).to(dtype)
    num_pairs = int(config.head_dim * rotated_share) // 2
    angles = torch.rand(num_tokens, num_pairs, device=device) * 2 * math.pi
    rotation = Rotation(angles.cos().to(dtype), angles.sin().to(dtype))
    weights = torch.randn(2, config.head_dim, device=device).to(dtype)
    slots = torch.randperm(num_blocks * BLOCK_SIZE, device=device)[:num_tokens].to(torch.int32)
    shape = (2, config.num_kv_heads, num_blocks, BLOCK_SIZE * config.head_dim)
    cached = torch.full(shape, _POISON, device=device, dtype=dtype)
    turned = rotate_and_store(
        fused,
        num_heads=config.num_heads,
        cosines=rotation.cosines,
        sines=rotation.sines,
        slots=slots,
        keys=cached[0],
        values=cached[1],
        norm=HeadNorm(weights[0], weights[1], EPS),
    )
    wide_heads = fused.double().view(num_tokens, -1, config.head_dim)
    queries, keys, values = torch.split_with_sizes(wide_heads, sizes, dim=1)
    wide = Rotation(rotation.cosines.double(), rotation.sines.double())
    expected = [
        rotate(plain_rms_norm(queries, weights[0].double(), EPS), wide),
        rotate(plain_rms_norm(keys, weights[1].double(), EPS), wide),
        values,
    ]
    stored = cached.view(2, config.num_kv_heads, -1, config.head_dim)[:, :, slots.long()].transpose(1, 2)
    return torch.cat([turned, stored[0], stored[1]], dim=1), torch.cat(expected, dim=1)


def _check_attention(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> _Pair:
    """Decode rows and prompts in one step, with contexts up to the model's length or a few thousand."""
    longest = min(config.max_model_len, 3000) - 1
    blocks = -(-(longest + 1) // BLOCK_SIZE)
    order = torch.randperm(4 * blocks).tolist()
    tables = [tuple(order[index * blocks : (index + 1) * blocks]) for index in range(4)]
    starts_and_sizes = ((longest, 1), (longest // 3, 1), (0, min(70, longest)), (longest - 40, 33))
    chunks, first_row = [], 0
    for (start, size), table in zip(starts_and_sizes, tables, strict=True):
        chunks.append(AttentionChunk(first_row, size, start, table))
        first_row += size
    results = []
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    fused = torch.randn(first_row, width, device=device).to(dtype)
    kept = torch.randn(2, config.num_kv_heads, 4 * blocks, BLOCK_SIZE * config.head_dim, device=device).to(dtype)
    for name, kind in (("triton", dtype), ("torch", torch.float32)):
        cache = KVCache(dataclasses.replace(config, num_layers=1), num_blocks=4 * blocks, dtype=kind, device=device)
        for cached, values in zip(cache.layer(0), kept, strict=True):
            cached.copy_(values)
        layers = [LayerAttention(config.head_dim**-0.5, window, softcap)]
        attention = make_attention(name, cache, num_heads=config.num_heads, layers=layers)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        parts = torch.split_with_sizes(fused.to(kind).view(first_row, -1, config.head_dim), sizes, dim=1)
        results.append(attention.attend(0, *parts, batch=attention.prepare(chunks)))
    return results[0], results[1]


def _check_experts(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> _Pair:
    """A mixture of experts, with grouped products where these are had: in bf16 on a GPU."""
    num_experts, inner = 8, max(8, config.intermediate_size // 8)

    def matrix(num_outputs: int, num_inputs: int) -> PlainMatrix:
        weight = torch.randn(num_outputs, num_inputs, device=device) / math.sqrt(num_inputs)
        return PlainMatrix(weight.to(dtype))

    hidden = config.hidden_size
    experts = tuple(DenseWeights(matrix(2 * inner, hidden), matrix(hidden, inner)) for _ in range(num_experts))
    weights = SparseWeights(matrix(num_experts, hidden), experts, 2)
    rows = torch.randn(37, hidden, device=device).to(dtype)
    chosen, shares = choose_experts(rows, weights, normalised=True)
    expected = torch.zeros(rows.shape, dtype=torch.float64, device=device)
    for place, expert in enumerate(experts):
        gates, ups = F.linear(rows.double(), expert.gate_up.plain().double()).chunk(2, dim=-1)
        share = (shares * (chosen == place)).sum(dim=1).double()
        expected += share[:, None] * F.linear(F.silu(gates) * ups, expert.down.plain().double())
    computed = stacked(weights) if device.type == "cuda" else weights
    return mix_experts(rows, computed, normalised=True, gate=gate), expected


def _checker_of_products(kind: Kind, num_rows: int) -> _Check:
    def check(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> _Pair:
        weights = packed_weights(kind, (config.intermediate_size, config.hidden_size), device)
        rows = torch.randn(num_rows, config.hidden_size, device=device).to(dtype)
        bias = torch.randn(config.intermediate_size, device=device).to(dtype)
        expected = F.linear(rows.double(), dequantised(weights).double(), bias.double())
        return multiply(rows, weights, bias), expected

    return check


_CHECKS: dict[str, _Check] = {
    "norms": _check_norms,
    "gates": _check_gates,
    "rotation and cache write": _check_rotation,
    "rotation of three quarters": functools.partial(_check_rotation, rotated_share=0.75),
    "attention": _check_attention,
    "attention with a window": functools.partial(_check_attention, window=100),
    "attention with a softcap": functools.partial(_check_attention, softcap=2.0),
    "experts": _check_experts,
    "int4 products of 3 rows": _checker_of_products("int4", 3),
    "int4 products of 100 rows": _checker_of_products("int4", 100),
    "int8 products of 3 rows": _checker_of_products("int8", 3),
    "fp8 products of 3 rows": _checker_of_products("fp8", 3),
    "fp8 products of 300 rows": _checker_of_products("fp8", 300),
}
