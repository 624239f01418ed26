"""Weights as the kernels read them: panels of 16 outputs, their inputs in pairs. See `kernels/tiles.h`."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

COLUMNS = 16
"""Outputs of a panel."""
INNER_MULTIPLE = 64
"""The inputs of a product are padded to this with zeros."""


def padded(tensor: torch.Tensor, dim: int, multiple: int) -> torch.Tensor:
    """`tensor` with zeros at the end of `dim` up to a multiple of `multiple`; itself where nothing is missing."""
    missing = -tensor.shape[dim] % multiple
    if not missing:
        return tensor
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [0, missing])


def panels_of(weight: torch.Tensor) -> torch.Tensor:
    """`weight` `[out, in]`, padded already, as `[out / 16, in / 2, 16, 2]`."""
    return weight.view(len(weight) // COLUMNS, COLUMNS, -1, 2).transpose(1, 2).contiguous()
