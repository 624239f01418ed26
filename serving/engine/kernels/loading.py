"""The kernels for this machine, checked before they are trusted."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from serving.engine.kernels.build import NoKernels, built_library, variants
from serving.engine.kernels.library import Library, NotUsable
from serving.engine.kernels.matrices import KernelMatrix

_log = logging.getLogger(__name__)

_SHAPES = ((1, 16, 32), (6, 64, 96), (19, 80, 64), (40, 48, 160))
"""Rows, outputs and inputs of the products that are tried: about the edges of every tile."""
_TOLERANCE = 1e-5


def load_kernels(folder: Path) -> Library:
    """The kernels for the best instruction set of this processor that the system lets us use and that multiplies right.

    Built in `folder` where they are missing. Raises `NoKernels`.
    """
    reason = "this processor has no AVX-512"
    for variant in variants():
        try:
            library = Library(built_library(folder, variant=variant))
        except NotUsable:
            reason = f"the system does not allow {variant}"
            continue
        if multiplies_right(library):
            return library
        reason = f"the kernels for {variant} do not multiply right here"
        _log.warning(reason)
    raise NoKernels(reason)


def multiplies_right(library: Library) -> bool:
    """Whether products of several shapes are what plain arithmetic makes of them."""
    generator = torch.Generator().manual_seed(0)
    for num_rows, num_outputs, num_inputs in _SHAPES:
        rows = torch.randn(num_rows, num_inputs, generator=generator).bfloat16()
        weight = torch.randn(num_outputs, num_inputs, generator=generator).bfloat16()
        found = KernelMatrix(weight).times(rows, library)
        expected = rows.double() @ weight.double().T
        if not torch.allclose(found.double(), expected, rtol=_TOLERANCE, atol=_TOLERANCE * num_inputs):
            return False
    return True
