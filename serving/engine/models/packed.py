"""Weights in fewer bits as any device takes them, and products with them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Literal

import torch

from serving.engine.models.weights import linear

Kind = Literal["int4", "int8", "fp8"]

_QUANTA_DTYPES: dict[Kind, torch.dtype] = {
    "int4": torch.uint8,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_TILE_WEIGHTS = 1 << 22
"""So many weights are unpacked at once where there is no kernel that does it on the way: 16 MiB of fp32."""


@dataclasses.dataclass(frozen=True, slots=True)
class PackedWeights:
    """Weights `[out, in]` of `kind`: weight[o, i] = scale · quantum + offset, in fp32.

    `quanta` are bytes: int4 uint8 `[out, in / 2]`, the even input in the low nibble; int8 and fp8 (float8_e4m3fn)
    `[out, in]`. `scales`, and `offsets` where there are any, are fp16 or fp32
    `[ceil(out / outputs_per_scale), ceil(in / inputs_per_scale)]`; those of weight [o, i] lie at
    [o // outputs_per_scale, i // inputs_per_scale]. `outputs_per_scale` is 1 for int4 and int8. Raises `ValueError` for
    what does not fit together.
    """

    kind: Kind
    quanta: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    outputs_per_scale: int
    inputs_per_scale: int

    def __post_init__(self) -> None:
        if self.quanta.dtype != _QUANTA_DTYPES[self.kind]:
            raise ValueError(f"quanta of {self.kind} are {_QUANTA_DTYPES[self.kind]}, not {self.quanta.dtype}")
        if self.outputs_per_scale < 1 or self.inputs_per_scale < 1:
            raise ValueError(f"a scale is of {self.outputs_per_scale} by {self.inputs_per_scale} weights, not of any")
        if self.kind != "fp8" and self.outputs_per_scale != 1:
            raise ValueError(f"{self.kind} has scales of one output each, not of {self.outputs_per_scale}")
        wanted = (
            math.ceil(self.num_outputs / self.outputs_per_scale),
            math.ceil(self.num_inputs / self.inputs_per_scale),
        )
        for name, values in (("scales", self.scales), ("offsets", self.offsets)):
            if values is not None and values.shape != wanted:
                raise ValueError(f"{name} have shape {list(values.shape)}, not {list(wanted)}")

    @property
    def num_outputs(self) -> int:
        """The `out` of the shape."""
        return self.quanta.shape[0]

    @property
    def num_inputs(self) -> int:
        """The `in` of the shape."""
        return self.quanta.shape[1] * (2 if self.kind == "int4" else 1)

    @property
    def num_bytes(self) -> int:
        """All that a product reads."""
        return self.quanta.nbytes + self.scales.nbytes + (0 if self.offsets is None else self.offsets.nbytes)


@dataclasses.dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Weights in fewer bits. With an `order` `[in]` they belong to the inputs in that order: `weights`' input number j
    is the rows' input number order[j].

    What weights mean is their fp32 value (see `PackedWeights`), and products are summed in fp32. Who unpacks weights
    rounds them to the rows' dtype first; a kernel that multiplies by quanta and scales the sum of a group is nearer to
    what they mean.
    """

    weights: PackedWeights
    bias: torch.Tensor | None
    dtype: torch.dtype
    """The model's."""
    order: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """As `Matrix.num_bytes`."""
        return self.weights.num_bytes

    def times(self, rows: torch.Tensor) -> torch.Tensor:
        """As `Matrix.times`. Without a kernel for it, unpacks some outputs' weights at a time."""
        if self.order is not None:
            rows = rows.index_select(1, self.order)
        if rows.is_cuda and (kernels := _gpu_kernels()) is not None and kernels.refusal(self.weights) is None:
            product: torch.Tensor = kernels.multiply(rows, self.weights, self.bias)
            return product
        return tiled_product(rows, self.weights, self.bias)

    def plain(self) -> torch.Tensor:
        """As `Matrix.plain`: a copy, whose inputs are in the rows' order."""
        found = torch.empty(
            (self.weights.num_outputs, self.weights.num_inputs), dtype=self.dtype, device=self.weights.quanta.device
        )
        for begin, end in _tiles(self.weights):
            tile = dequantised(self.weights, begin, end).to(self.dtype)
            if self.order is None:
                found[begin:end] = tile
            else:
                found[begin:end].index_copy_(1, self.order, tile)
        return found


def joined_packed(matrices: Sequence[PackedMatrix], bias: torch.Tensor | None) -> PackedMatrix | None:
    """The matrices fused along their outputs, with this `bias`; None where they are kept too differently."""
    if not _are_alike(matrices):
        return None
    first = matrices[0]
    return PackedMatrix(_joined_weights([matrix.weights for matrix in matrices]), bias, first.dtype, first.order)


def dequantised(weights: PackedWeights, begin: int = 0, end: int | None = None) -> torch.Tensor:
    """The weights of outputs `begin` to `end` (without it), fp32 `[end - begin, in]`."""
    quanta = unpacked_quanta(weights, begin, end).float()
    num_outputs, num_inputs = quanta.shape
    owners = torch.arange(begin, begin + num_outputs, device=quanta.device) // weights.outputs_per_scale
    quanta *= _spread(weights.scales[owners].float(), weights.inputs_per_scale, num_inputs)
    if weights.offsets is not None:
        quanta += _spread(weights.offsets[owners].float(), weights.inputs_per_scale, num_inputs)
    return quanta


def unpacked_quanta(weights: PackedWeights, begin: int = 0, end: int | None = None) -> torch.Tensor:
    """The quanta of outputs `begin` to `end` (without it), one an element, `[end - begin, in]`: of int4 uint8 0 to 15,
    otherwise as they are kept."""
    quanta = weights.quanta[begin:end]
    return unpacked_nibbles(quanta) if weights.kind == "int4" else quanta


def unpacked_nibbles(pairs: torch.Tensor) -> torch.Tensor:
    """uint8 `[…, n]` as uint8 `[…, 2 * n]`: of each byte the low nibble, then the high one."""
    return torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2)


def packed_nibbles(quanta: torch.Tensor) -> torch.Tensor:
    """uint8 `[…, 2 * n]` of numbers 0 to 15 as uint8 `[…, n]`: undoes `unpacked_nibbles`."""
    return quanta[..., ::2] | quanta[..., 1::2] << 4


def narrowed(values: torch.Tensor) -> torch.Tensor:
    """`values` as fp16 where that holds each of them exactly, otherwise as fp32: fewer bytes are read faster."""
    half = values.half()
    return half if torch.equal(half.float(), values.float()) else values.float()


def tiled_product(rows: torch.Tensor, weights: PackedWeights, bias: torch.Tensor | None) -> torch.Tensor:
    """`rows` `[num_rows, in]` times `weights` transposed, plus `bias` `[out]`: the measure of every kernel for it.

    Weights are rounded to the rows' dtype. Takes memory for some of them at a time.
    """
    parts = []
    for begin, end in _tiles(weights):
        tile = dequantised(weights, begin, end).to(rows.dtype)
        parts.append(linear(rows, tile, None if bias is None else bias[begin:end]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


@functools.cache
def _gpu_kernels() -> ModuleType | None:
    """The kernels for products on a GPU; None where their compiler is not installed."""
    try:
        return importlib.import_module("serving.engine.kernels.gpu.products")
    except ImportError:
        return None


def _tiles(weights: PackedWeights) -> list[tuple[int, int]]:
    size = max(1, _TILE_WEIGHTS // weights.num_inputs)
    return [(begin, min(begin + size, weights.num_outputs)) for begin in range(0, weights.num_outputs, size)]


def _spread(values: torch.Tensor, size: int, num_inputs: int) -> torch.Tensor:
    """`values` `[num_outputs, groups]`, each for `size` inputs in a row: `[num_outputs, num_inputs]`, or with 1 in the
    last place where it is the same for all."""
    return values if values.shape[1] == 1 else values.repeat_interleave(size, dim=1)[:, :num_inputs]


def _are_alike(matrices: Sequence[PackedMatrix]) -> bool:
    first = matrices[0]
    for other in matrices[1:]:
        if other.weights.kind != first.weights.kind or other.dtype != first.dtype:
            return False
        if other.weights.inputs_per_scale != first.weights.inputs_per_scale:
            return False
        if (other.weights.offsets is None) != (first.weights.offsets is None):
            return False
        if (other.order is None) != (first.order is None):
            return False
        if other.order is not None and first.order is not None and not torch.equal(other.order, first.order):
            return False
    return True


def _joined_weights(parts: Sequence[PackedWeights]) -> PackedWeights:
    """The parts under each other. A scale is of as many outputs as fit each part but the last without a rest."""
    outputs_per_scale = math.gcd(*(part.outputs_per_scale for part in parts), *(one.num_outputs for one in parts[:-1]))

    def under_each_other(values: Sequence[torch.Tensor]) -> torch.Tensor:
        rows = [_repeated(value, part, outputs_per_scale) for value, part in zip(values, parts, strict=True)]
        return torch.cat([row.float() for row in rows] if len({row.dtype for row in rows}) > 1 else rows)

    offsets = [part.offsets for part in parts if part.offsets is not None]
    return PackedWeights(
        parts[0].kind,
        # Concatenated as bytes: not every device joins 8-bit floats.
        torch.cat([part.quanta.view(torch.uint8) for part in parts]).view(parts[0].quanta.dtype),
        under_each_other([part.scales for part in parts]),
        under_each_other(offsets) if offsets else None,
        outputs_per_scale,
        parts[0].inputs_per_scale,
    )


def _repeated(values: torch.Tensor, part: PackedWeights, outputs_per_scale: int) -> torch.Tensor:
    """`values` of `part`, which are of more outputs, said for `outputs_per_scale` each."""
    repeated = values.repeat_interleave(part.outputs_per_scale // outputs_per_scale, dim=0)
    return repeated[: math.ceil(part.num_outputs / outputs_per_scale)]
