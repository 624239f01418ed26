"""Matrices that are made of others, and such as are read when they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from serving.engine.models.packed import PackedMatrix, joined_packed
from serving.engine.models.weights import (
    DecoderWeights,
    DenseWeights,
    LayerWeights,
    Matrix,
    PlainMatrix,
    SparseWeights,
    stacked,
)

_Value = TypeVar("_Value")
_GROUPED_CAPABILITIES = (9, 10)
"""Hopper and the Blackwell of data centres, by the first number of their compute capability."""


@dataclasses.dataclass(frozen=True, slots=True)
class JoinedMatrix:
    """Matrices that are kept differently, fused along their outputs all the same."""

    parts: tuple[Matrix, ...]

    @property
    def bias(self) -> torch.Tensor | None:
        """As `Matrix.bias`."""
        return _joined_bias(self.parts)

    @property
    def num_bytes(self) -> int:
        """As `Matrix.num_bytes`."""
        return sum(part.num_bytes for part in self.parts)

    def times(self, rows: torch.Tensor) -> torch.Tensor:
        """As `Matrix.times`."""
        return torch.cat([part.times(rows) for part in self.parts], dim=1)

    def plain(self) -> torch.Tensor:
        """As `Matrix.plain`."""
        return torch.cat([part.plain() for part in self.parts])


@dataclasses.dataclass(frozen=True, slots=True)
class DeferredMatrix:
    """A matrix that `read` reads, anew each time that something of it is asked: for who keeps it in another form."""

    read: Callable[[], Matrix]

    @property
    def bias(self) -> torch.Tensor | None:
        """As `Matrix.bias`."""
        return self.read().bias

    @property
    def num_bytes(self) -> int:
        """As `Matrix.num_bytes`."""
        return self.read().num_bytes

    def times(self, rows: torch.Tensor) -> torch.Tensor:
        """As `Matrix.times`."""
        return self.read().times(rows)

    def plain(self) -> torch.Tensor:
        """As `Matrix.plain`."""
        return self.read().plain()


def joined(matrices: Sequence[Matrix]) -> Matrix:
    """The matrices fused along their outputs: as one where they are kept alike. All have a bias, or none has."""
    if len(matrices) == 1:
        return matrices[0]
    bias = _joined_bias(matrices)
    plain = [matrix.weight for matrix in matrices if isinstance(matrix, PlainMatrix)]
    if len(plain) == len(matrices):
        return PlainMatrix(torch.cat(plain), bias)
    packed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    if len(packed) == len(matrices) and (whole := joined_packed(packed, bias)) is not None:
        return whole
    return JoinedMatrix(tuple(matrices))


def all_in_memory(weights: _Value) -> _Value:
    """`weights`, a decoder's or a part of them, with every matrix in memory."""
    found: _Value = _in_memory(weights)
    return found


def _in_memory(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_in_memory, value))
    if isinstance(value, DeferredMatrix):
        return value.read()
    if not isinstance(value, DecoderWeights | LayerWeights | DenseWeights | SparseWeights):
        return value
    parts = {field.name: _in_memory(getattr(value, field.name)) for field in dataclasses.fields(value)}
    changed = dataclasses.replace(value, **parts)
    if isinstance(changed, SparseWeights) and multiplies_groups(changed.router.plain().device):
        return stacked(changed)
    return changed


def multiplies_groups(device: torch.device) -> bool:
    """Whether PyTorch's grouped products are one kernel on `device`. On other GPUs than these they are a product for
    each group, whose sizes the host waits for: it then does as well to compute only the groups that have rows."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in _GROUPED_CAPABILITIES


def _joined_bias(parts: Sequence[Matrix]) -> torch.Tensor | None:
    biases = [part.bias for part in parts]
    known = [bias for bias in biases if bias is not None]
    if known and len(known) < len(biases):
        raise ValueError("some of the joined matrices have a bias, and some have none")
    return torch.cat(known) if known else None
